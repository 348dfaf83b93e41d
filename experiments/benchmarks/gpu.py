"""The first hour on a machine with GPUs: is it right there, and where does the time go?

    python experiments/benchmarks/gpu.py            prints the page
    python experiments/benchmarks/gpu.py --write    and writes results/gpu.md
    python experiments/benchmarks/gpu.py --try      a small model on this machine's CPU: whether the
                                                    program itself works

It needs `pip install -e '.[test]'`. Each part runs by itself: one that this machine cannot do, or
that fails, is named at the end of the page with its reason, and the others go on.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
import torch
from plain_training import PRECISIONS, Setting, ddp_samples_per_s, plain_samples_per_s, told
from report import HERE, finished, markdown, measured_on, tabulate
from step_budget import budget
from step_options import computing_options, wire_options

from raysync import config
from raysync.cluster.session import Session
from raysync.errors import ConfigError
from raysync.record.reader import RunRecord
from raysync.running.run import run_in
from raysync.training.worker.gradient import GradientComputation
from raysync.training.worker.precision import refuse_unsupported

ROOT = Path(__file__).parents[2]
TESTS = ("tests/numerics/test_devices.py", "tests/cluster/test_gpus.py")
"""Those that a GPU is needed for: of the arithmetic, and of a run on Ray."""
COUNTS = (1, 4, 8)
"""The numbers of workers, one GPU each; that of all GPUs there comes in addition."""
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "asp": ({"name": "asp"}, {}),
    "bsp": ({"name": "bsp"}, {}),
    "asp, bf16 on the wire": ({"name": "asp"}, {"cluster": {"wire": "bf16"}}),
    "asp, shared memory": ({"name": "asp"}, {"cluster": {"transport": "shared-memory"}}),
    "diloco, 16 steps": (
        {"name": "diloco", "steps": 16},
        {
            "local": {"optimizer": "adamw", "lr": 0.001},
            "update": {"lr": 0.7, "momentum": 0.9, "nesterov": True},
        },
    ),
}
"""Name -> the paradigm, and other settings."""
SMALL = Setting("cpu", "mlp", (1, 8, 8), samples=500, batch_size=16, steps=10, precision="float32")
"""What `--try` trains."""
ORDERS = (("bsp", "asp"), ("asp", "bsp"))
STEPS_COMPARED = 3


class Impossible(Exception):
    """This machine cannot do a part; the message says why."""


# ---- is it right? ----


def machine(setting: Setting) -> str:
    """Say what this machine is."""
    if setting.kind == "cpu":
        return measured_on()
    rows = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        rows.append(
            {
                "device": f"cuda:{index}",
                "name": facts.name,
                "memory": f"{facts.total_memory / 2**30:.0f} GiB",
                "compute capability": f"{facts.major}.{facts.minor}",
            }
        )
    cudnn = torch.backends.cudnn.version()
    return f"{tabulate(rows)}\n\nCUDA {torch.version.cuda}, cuDNN {cudnn}; {measured_on()}"


def tests(setting: Setting) -> str:
    """Run the tests of devices, and again under torch's sanitizer, which finds missing waits
    between streams.
    """
    rows = []
    for name, variables in {
        "as they are": {},
        "under TORCH_CUDA_SANITIZER": {"TORCH_CUDA_SANITIZER": "1"},
    }.items():
        if variables and setting.kind == "cpu":
            continue
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *TESTS]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True
        )
        lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
        rows.append([name, lines[-1].strip("= ") if lines else f"exit {done.returncode}"])
        rows += [["", line.replace("|", "/")] for line in lines if line.startswith("FAILED")]
    return markdown([" ".join(TESTS), "result"], rows)


def numerics(setting: Setting) -> str:
    """Compare some steps on the device with those on the CPU, in each precision."""
    if setting.kind == "cpu":
        raise Impossible("the numbers of a GPU beside those of a CPU need a GPU")
    rows = []
    for model in ("convnet", "resnet20", "resnet18"):
        shape = (1, 28, 28) if model == "convnet" else (3, 32, 32)
        exact_losses, exact = _computed(model, shape, "cpu", "float32")
        for precision in PRECISIONS:
            try:
                refuse_unsupported(precision, setting.device())
                losses, gradient = _computed(model, shape, setting.device(), precision)
            except Exception as error:  # a precision that it lacks: the other rows still count
                rows.append([model, precision, told(error), ""])
                continue
            apart = max(abs(a / b - 1) for a, b in zip(losses, exact_losses, strict=True))
            off = float((gradient - exact).norm() / exact.norm())
            rows.append([model, precision, f"{apart:.1e}", f"{off:.1e}"])
    return markdown(["model", "precision", "loss, relative", "gradient, relative"], rows)


def _computed(
    model: str, shape: tuple[int, ...], device: str, precision: str
) -> tuple[list[float], torch.Tensor]:
    """Return the losses of a few batches at the initial weights, and the last gradient."""
    training = Setting("cpu", model, shape, samples=1000).prepared()
    [slot] = training.groups
    computation = GradientComputation(
        training.build(), training.task, [device], config.WorkerGroup(precision=precision)
    )
    reader = training.reader(slot)
    losses = [computation.compute(reader, clock, 64) for clock in range(STEPS_COMPARED)]
    return losses, computation.outgoing()[: computation.model.size].clone()


# ---- where does the time go? ----


def time_budget(setting: Setting) -> str:
    """Measure the parts of a push."""
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    measured = budget(setting, ray.put, ray.get)
    rows = [[part, f"{took:.1f}"] for part, took in measured.items()]
    return markdown(["part of a push", "ms"], rows)


def options(setting: Setting) -> str:
    """Measure what kernels that are tried, compiling, and bf16 on the wire gain."""
    computing = markdown(
        ["precision", "kernels", "", "ms a step", "gradient, relative"], computing_options(setting)
    )
    wire = markdown(
        ["on the wire", "from the device, ms", "an update, ms", "each further gradient, ms"],
        wire_options(setting),
    )
    return f"{computing}\n\n{wire}"


def workers(setting: Setting) -> str:
    """Compare raysync with one device alone and with DistributedDataParallel."""
    there = device_count(setting)
    plain = plain_samples_per_s(setting)
    rows = [["plain torch", 1, f"{plain:,.0f}", "1.00", ""]]
    for count in counts(there):
        rows.append(["DDP", count, *_ddp(setting, count, plain)])
        for way in WAYS:
            rows.append([f"raysync, {way}", count, *_raysync(setting, count, way, plain)])
    header = ["", "workers", "samples/s", "of one plain device", "first step / median"]
    return markdown(header, rows)


def counts(there: int) -> list[int]:
    """Return the numbers of workers that so many devices allow."""
    return sorted({count for count in (*COUNTS, there) if count <= there})


def _ddp(setting: Setting, count: int, plain: float) -> list[str]:
    """Return the cells of DistributedDataParallel, which may fail by itself, as by NCCL."""
    try:
        rate = ddp_samples_per_s(setting, count)
    except Exception as error:
        return [told(error), "", "", ""]
    return [f"{rate:,.0f}", f"{rate / plain:.2f}", "", ""]


def _raysync(setting: Setting, count: int, way: str, plain: float) -> list[str]:
    """Return samples per second, these in those of a plain device, and how slow a first step is."""
    paradigm, settings = WAYS[way]
    try:
        with Session() as session:
            record = run_of(setting, session, paradigm, count, settings)
    except Exception as error:  # a transport that is not there: the other rows still count
        return [told(error), "", ""]
    rate = record.summary["throughput_samples_per_s"]
    return [f"{rate:,.0f}", f"{rate / plain:.2f}", f"{_first_step(record):.2f}"]


def device_count(setting: Setting) -> int:
    return torch.cuda.device_count() if setting.kind == "cuda" else 1


def _first_step(record: RunRecord) -> float:
    """Return how many times the median step the slowest first step took: 1, once it is warm."""
    pushes = record.pushes
    return float(pushes[pushes.clock == 0].busy_s.max() / pushes.busy_s.median())


def orders(setting: Setting) -> str:
    """Compare two paradigms in both orders: neither may gain by coming second."""
    rates: dict[str, list[float]] = {}
    for order in ORDERS:
        with Session() as session:
            for paradigm in order:
                record = run_of(setting, session, {"name": paradigm}, min(2, device_count(setting)))
                rates.setdefault(paradigm, []).append(record.summary["throughput_samples_per_s"])
    (as_first, as_second), (second, first) = rates["bsp"], rates["asp"]
    rows = [
        ["bsp", f"{as_first:,.0f}", f"{as_second:,.0f}", f"{as_second / as_first:.2f}"],
        ["asp", f"{first:,.0f}", f"{second:,.0f}", f"{second / first:.2f}"],
    ]
    return markdown(["paradigm", "samples/s as first", "as second", "ratio"], rows)


def run_of(
    setting: Setting,
    session: Session,
    paradigm: Mapping[str, Any],
    count: int,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> RunRecord:
    with tempfile.TemporaryDirectory() as output:
        training = setting.prepared(count, 1, output=output, **settings)
        record = finished(run_in(session, training, config.ParadigmChoice(**paradigm)))
        len(record.pushes)  # read while the folder is there
        return record


PARTS: dict[str, Callable[[Setting], str]] = {
    "The machine": machine,
    "Tests of devices": tests,
    "Numbers beside a CPU's": numerics,
    "The time of a push": time_budget,
    "What the options gain": options,
    "Workers beside plain torch and DDP": workers,
    "Both orders of a comparison": orders,
}
"""Heading -> what makes that part of the page."""


def sections(setting: Setting) -> Iterator[str]:
    """Yield every part that this machine can do, then why it cannot do the others."""
    missing = list(limits(setting))
    for heading, part in PARTS.items():
        try:
            yield f"### {heading}\n\n{part(setting).rstrip()}\n\n"
        except Impossible as reason:
            missing.append(f"{heading}: {reason}.")
        except Exception as error:  # the machine is new to the program: the other parts still count
            missing.append(f"{heading}: {told(error)}")
        finally:
            ray.shutdown()
    if missing:
        yield "### What this machine could not do\n\n" + "".join(f"- {one}\n" for one in missing)


def limits(setting: Setting) -> Iterator[str]:
    """Yield what cannot be shown here although its part runs."""
    there = device_count(setting)
    lacking = [str(count) for count in COUNTS if count > there]
    if setting.kind == "cpu":
        yield "Anything about a GPU: this is a trial of the program on a CPU."
        return
    if lacking:
        yield f"{' and '.join(lacking)} workers of one GPU each: GPUs there: {there}."
    if setting.precision == "float32":
        yield "tf32, in which the estimates were made: the GPU does not have it."


def large_setting() -> Setting:
    """Return what is trained on a GPU, in tf32 if it has that."""
    setting = Setting()
    try:
        refuse_unsupported(setting.precision, setting.device())
    except ConfigError:
        return replace(setting, precision="float32")
    return setting


def main() -> None:
    """Parse the command line, measure, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into results/gpu.md as well")
    parser.add_argument("--try", action="store_true", dest="small", help="on the CPU, small")
    asked = parser.parse_args()
    if asked.small and asked.write:
        parser.error("--try measures nothing that should be written")
    if not asked.small and not torch.cuda.is_available():
        parser.error("torch sees no GPU on this machine; --try runs the program on its CPU")
    text = ""
    for section in sections(SMALL if asked.small else large_setting()):
        print(section, flush=True)
        text += section
        if asked.write:  # at once: a lent machine may be taken away
            HERE.write_measured("gpu", text)


if __name__ == "__main__":
    main()
