"""Which of torch's devices an actor computes on, where Ray gave it GPUs."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray
import torch
from ray.exceptions import RayTaskError

import raysync
from raysync import config
from raysync.cluster.actor_errors import ActorError, signed, start_reason
from raysync.cluster.actors import devices
from raysync.cluster.session import Session
from raysync.errors import ConfigError
from raysync.training.worker.device import limit_memory

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch sees no GPU on this machine"
)


@pytest.fixture
def actor(monkeypatch):
    """Call it with the GPUs that Ray gave to an actor and the number that torch sees: the devices
    of its replicas.
    """

    def devices_of(given, visible, replicas=1):
        context = SimpleNamespace(
            get_accelerator_ids=lambda: {"GPU": given} if given is not None else {}
        )
        monkeypatch.setattr(devices.ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: visible > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        monkeypatch.setattr(devices, "refuse_without_kernels", lambda name: None)
        return devices.devices_of_actor(replicas)

    return devices_of


@pytest.mark.parametrize(
    ("given", "visible", "replicas", "expected"),
    [
        ([], 0, 1, ["cpu"]),
        ([], 8, 2, ["cpu", "cpu"]),
        (None, 8, 1, ["cpu"]),
        (["0", "1"], 0, 2, ["cpu", "cpu"]),
        (["3"], 1, 1, ["cuda:0"]),
        (["5", "6"], 2, 2, ["cuda:0", "cuda:1"]),
        (["GPU-8f1c"], 1, 1, ["cuda:0"]),
        (["5", "6"], 8, 2, ["cuda:5", "cuda:6"]),
        (["3"], 8, 1, ["cuda:3"]),
        (["5", "6"], 8, 1, ["cuda:5"]),
    ],
    ids=[
        "none",
        "none of eight",
        "unknown to Ray",
        "torch sees none",
        "shown one",
        "shown two",
        "shown by its UUID",
        "shown all, given two",
        "shown all, given one",
        "a module of a decoupled run has one",
    ],
)
def test_an_actor_computes_on_the_gpus_that_ray_gave_it(actor, given, visible, replicas, expected):
    assert actor(given, visible, replicas) == expected


@pytest.mark.parametrize(("given", "visible"), [(["0", "1"], 1), (["6"], 4), (["GPU-8f1c"], 4)])
def test_gpus_that_torch_does_not_see_are_refused(actor, given, visible):
    with pytest.raises(
        ConfigError,
        match=f"Ray gave GPU {', '.join(given)} to a process in which torch sees {visible}, ",
    ):
        actor(given, visible)


def test_what_an_actor_finds_wrong_with_its_gpu_is_told_without_a_traceback(monkeypatch):
    def get(references):
        raise RayTaskError(
            "Worker.reset", "a long traceback", ConfigError("gpus: no code for it")
        ).as_instanceof_cause()

    monkeypatch.setattr(ray, "get", get)
    session = Session()
    monkeypatch.setattr(session, "_actor_group", SimpleNamespace(start_deadline_s=10.0))
    with pytest.raises(ConfigError) as raised:
        session.await_reset({"w-0": None})
    assert (type(raised.value), str(raised.value)) == (ConfigError, "gpus: no code for it")


FULL = "CUDA out of memory. Tried to allocate 20.00 MiB."


def told_of(error):
    """What an actor tells of an error of its own."""
    with pytest.raises(ActorError) as raised, signed():
        raise error
    return raised.value.reason


def test_a_step_without_memory_says_what_to_change():
    reason = told_of(torch.OutOfMemoryError(FULL))
    assert reason.startswith(f"OutOfMemoryError: {FULL} ")
    for setting in ("batch_size", "micro_batch", "precision: bf16", "gpus"):
        assert setting in reason


def test_the_memory_of_a_node_is_another_matter():
    error = ray.exceptions.OutOfMemoryError("a node ran out of memory")
    assert "batch_size" not in told_of(error)


def test_so_does_an_actor_that_cannot_start_without_a_traceback():
    def told(cause):
        return start_reason(
            RayTaskError("Worker.reset", "a long traceback", cause).as_instanceof_cause()
        )

    assert told(torch.OutOfMemoryError(FULL)).startswith(
        f"OutOfMemoryError: {FULL} Reduce its memory"
    )
    assert "a long traceback" in told(RuntimeError("another"))


@needs_gpu
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_run_on_a_gpu_is_that_on_a_cpu(tmp_path):
    """In processes of their own, with private clusters: that of the other tests declares no GPU."""

    def losses(gpus):
        settings = {
            "model": "lenet",
            "data": {"name": "synthetic", "parameters": {"shape": [3, 32, 32], "train": 300}},
            "workers": [{"name": "w", "gpus": gpus}],
            "batch_size": 20,
            "workload": {"samples": 400},
            "evaluation": {"marks": 1},
            "paradigm": "bsp",
            "output": str(tmp_path / str(gpus)),
        }
        file = tmp_path / f"{gpus}.json"
        file.write_text(json.dumps(settings))
        subprocess.run([sys.executable, "-m", "raysync", "run", file], check=True)
        [record] = [
            raysync.load(header.parent) for header in tmp_path.glob(f"{gpus}/*/*/journal.jsonl")
        ]
        assert record.environment["places"]["w-0"]["devices"][0].startswith(
            "cuda:0 " if gpus else "cpu"
        )
        return record.pushes.loss.tolist()

    assert losses(gpus=1) == pytest.approx(losses(gpus=0), rel=1e-2)


# ---- what a process does about its GPU ----


@pytest.fixture
def a100(monkeypatch):
    facts = SimpleNamespace(name="NVIDIA A100", total_memory=40 * 2**30, major=8, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda name: facts)
    return facts


def test_the_record_says_what_a_gpu_is(a100):
    text = devices.describe_gpu("cuda:0")
    assert text.startswith("cuda:0 NVIDIA A100, 40 GiB, compute capability 8.0, CUDA ")


def test_several_processes_on_a_gpu_have_their_share_of_its_memory(monkeypatch):
    limits = []
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda share, name: limits.append((name, share)),
    )
    for device, share in (("cpu", 0.5), ("cuda:0", 1), ("cuda:0", 2), ("cuda:1", 0.25)):
        limit_memory(device, share)
    assert limits == [("cuda:1", 0.25)]


@pytest.mark.parametrize("names", [["cpu"], ["cuda:0"], ["cuda:0", "cuda:1"]])
def test_a_worker_and_a_stage_find_their_devices_ready(monkeypatch, names):
    seen = {name: [] for name in ("refuse_unsupported", "limit_memory", "refuse_without_compiler")}
    for name, calls in seen.items():
        monkeypatch.setattr(devices, name, lambda *arguments, calls=calls: calls.append(arguments))
    monkeypatch.setattr(devices, "devices_of_actor", lambda replicas: names[:replicas])
    group = config.WorkerGroup(gpus=0.5, precision="bf16", compile=True)
    assert devices.ready_devices(group, len(names)) == names
    assert seen == {
        "refuse_unsupported": [("bf16", name) for name in names],
        "limit_memory": [(name, 0.5) for name in names],
        "refuse_without_compiler": [(name,) for name in names],
    }
