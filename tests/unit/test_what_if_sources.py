"""The sources of `raysync whatif`: real traces of torch's profiler, Ray timelines, tables, runs;
what is wrong with them.
"""

import gzip
import json
from pathlib import Path
from time import perf_counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

import raysync
from raysync.errors import ConfigError
from raysync.what_if.step_times import read


def profiled(folder, ranks=2, active=4):
    """Train a little under torch's profiler, once a rank; return rank -> seconds of its steps, by a
    clock around what each of them does.
    """
    seconds = {}
    for rank in range(ranks):
        model = torch.nn.Linear(64, 64)
        begun = []
        with profile(
            activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=active)
        ) as profiler:
            for number in range(active + 2):
                begin = perf_counter()
                for _ in range(4 * (rank + number)):
                    model(torch.randn(64, 64)).sum().backward()
                begun.append(perf_counter() - begin)
                if number < active + 1:
                    profiler.step()
        profiler.export_chrome_trace(str(folder / f"rank{rank}.1700.pt.trace.json"))
        seconds[f"rank{rank}"] = begun[2:]
    return seconds


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_real_traces_of_torch_s_profiler(tmp_path):
    seconds = profiled(tmp_path)
    names = [str(path) for path in sorted(tmp_path.iterdir())]
    steps = read(names)
    assert list(steps.steps) == ["rank0", "rank1"]
    for rank, of_rank in seconds.items():
        assert steps.steps[rank] == pytest.approx(of_rank, rel=0.2, abs=2e-3)
    assert steps.source == "2 traces of torch's profiler"
    assert read([str(tmp_path)]).steps == steps.steps  # the folder of the traces
    for name in names:
        Path(f"{name}.gz").write_bytes(gzip.compress(Path(name).read_bytes()))
    assert read([f"{name}.gz" for name in names]).steps == steps.steps


def step(number, dur=1000.0, **more):
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"ProfilerStep#{number}",
        "ts": number * 2000,
        "dur": dur,
        **more,
    }


def trace(tmp_path, name, *events, **more):
    path = tmp_path / name
    path.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "x"}, *events], **more}))
    return str(path)


def test_ranks_are_known_by_their_traces_and_may_have_several_files(tmp_path):
    info = {rank: {"distributedInfo": {"rank": rank}} for rank in (2, 10)}
    files = [
        trace(tmp_path, "a.json", step(3, 3000), step(4, 4000), **info[10]),
        trace(tmp_path, "b.json", step(9, 9000), **info[10]),
        trace(tmp_path, "c.json", step(9), step(4), step(3), **info[2]),
    ]
    steps = read(files)
    assert list(steps.steps) == ["rank2", "rank10"]
    assert steps.steps["rank10"] == pytest.approx((0.003, 0.004, 0.009))
    assert steps.remarks == (
        "The profiler paused 1 time between steps 3 and 9: the steps around a pause are taken to"
        " follow each other.",
    )


def test_the_gpu_s_part_of_a_step_is_not_another_step(tmp_path):
    gpu = step(0, 700, cat="gpu_user_annotation")
    assert read([trace(tmp_path, "a.json", gpu, step(0))]).steps == {"a": (0.001,)}


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ([step(0), step(1)], [step(1)], "b: ProfilerStep#0 is missing, which a has"),
        ([step(0)], [step(0), step(1)], "a: ProfilerStep#1 is missing, which b has"),
        ([step(0), step(0)], [step(0)], "a.json: ProfilerStep#0 is there twice."),
        ([step(0, -5)], [step(0)], "a.json: ProfilerStep#0 lasts -5 us; it must be above 0 and"),
        ([step(0)], [{"ph": "X", "name": "matmul"}], "b.json: a trace, but it has no events"),
        ([step(0, "1")], [step(0)], "ProfilerStep#0 lasts '1' us"),
        (
            [{"ph": "X", "name": "matmul"}],
            [step(0)],
            "a.json: a trace, but it has no events ProfilerStep#N",
        ),
        ([{"ph": "X", "cat": "task::T.step", "ts": 0, "dur": 1}], [step(0)], "one file, with the"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_with_traces(tmp_path, first, second, says):
    files = [trace(tmp_path, "a.json", *first), trace(tmp_path, "b.json", *second)]
    with pytest.raises(ConfigError) as raised:
        read(files)
    assert says in str(raised.value)


def test_the_same_rank_twice(tmp_path):
    info = {"distributedInfo": {"rank": 0}}
    files = [trace(tmp_path, name, step(0), **info) for name in ("a.json", "b.json")]
    with pytest.raises(ConfigError, match=r"b.json: ProfilerStep#0 is there twice, first in .*a.j"):
        read(files)


def work(ts, dur, name="aten::mm", cat="cpu_op"):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur}


COLLECTIVES = {
    "gloo alone": ([work(0, 400), work(300, 600, "gloo:all_reduce")], 500),
    "hidden by work": ([work(0, 400), work(50, 250, "gloo:all_reduce")], 1000),
    "in the middle of work": (
        [work(0, 100), work(50, 300, "gloo:all_reduce"), work(200, 50), work(250, 9)],
        1000 - 100 - 91,
    ),
    "two at once": (
        [work(100, 300, "gloo:all_reduce"), work(200, 300, "gloo:broadcast")],
        1000 - 400,
    ),
    "beyond the step": ([work(900, 2000, "gloo:all_reduce")], 900),
    "called by an operator": (
        [work(0, 500, "c10d::allreduce_"), work(0, 900, "autograd::engine")],
        500,
    ),
    "on a GPU": (
        [
            work(0, 1000, "aten::conv2d"),  # the CPU waits for the GPU
            work(0, 500, "nccl:all_reduce", "user_annotation"),
            work(0, 300, "gemm", "kernel"),
            work(200, 500, "ncclDevKernel_AllReduce_Sum", "kernel"),
            work(600, 50, "Memcpy", "gpu_memcpy"),
        ],
        1000 - 350,
    ),
    "another step's": ([work(1200, 300, "gloo:all_reduce")], 1000),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_time_in_which_a_rank_only_communicates_is_taken_off_its_step(tmp_path, name):
    events, left_us = COLLECTIVES[name]
    steps = read([trace(tmp_path, "a.json", *events, step(0))])
    assert steps.steps["a"] == pytest.approx((left_us * 1e-6,))
    said = [remark for remark in steps.remarks if "nothing but communicate" in remark]
    assert len(said) == (left_us < 1000)


def test_a_step_that_only_communicates_is_refused(tmp_path):
    path = trace(tmp_path, "a.json", step(0), work(0, 1000, "gloo:all_reduce"))
    with pytest.raises(ConfigError, match="ProfilerStep#0 does nothing but communicate"):
        read([path])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: it is no trace"),
        ('{"traceEvents": [\n1, }', "line 2: it is no trace"),
        ("{}", "it has no list traceEvents"),
        ("7", "it has no list traceEvents"),
        ("[1, null]", "nor has it tasks of Ray"),
        ("[" * 100_000, "it is no trace"),
    ],
    ids=["empty", "damaged", "object", "number", "list", "deep"],
)
def test_a_file_that_is_no_trace(tmp_path, text, says):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json: ") as raised:
        read([str(path)])
    assert says in str(raised.value)


def test_a_gz_that_is_none(tmp_path):
    path = tmp_path / "x.json.gz"
    path.write_bytes(b"plain")
    with pytest.raises(ConfigError, match=r"x\.json\.gz: "):
        read([str(path)])


# ---- Ray ----


def task(worker, method, ts, dur, execute=None):
    """Two events of a task, as Ray 2.60 exports them."""
    at = {"ph": "X", "pid": "10.0.0.1", "tid": f"worker:{worker * 8}"}
    whole = {**at, "cat": f"task::{method}", "name": method.split(".")[-1], "ts": ts, "dur": dur}
    parts = [{**at, "cat": "task:deserialize_arguments", "name": "x", "ts": ts + 1, "dur": 2}]
    if execute is not None:
        parts.append(
            {**at, "cat": "task:execute", "name": "task:execute", "ts": ts + 5, "dur": execute}
        )
    return [*parts, whole]


def timeline(tmp_path, *tasks):
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps([event for each in tasks for event in each]))
    return str(path)


def test_a_ray_timeline_has_the_executions_of_a_method_by_process(tmp_path):
    path = timeline(
        tmp_path,
        task("b", "Trainer.step", 500, 200, 100),
        task("a", "Trainer.__init__", 0, 90, 80),
        task("b", "Trainer.__init__", 0, 90, 80),
        task("a", "Trainer.step", 1000, 310, 300),
        task("a", "Trainer.step", 100, 210, 200),
        task("b", "Trainer.step", 800, 50),  # its execution was not recorded
    )
    steps = read([path])
    assert steps.steps == {
        "0 (10.0.0.1 aaaaaaaa)": pytest.approx((2e-4, 3e-4)),
        "1 (10.0.0.1 bbbbbbbb)": pytest.approx((1e-4, 5e-5)),
    }
    assert steps.source == f"the calls of Trainer.step in the Ray timeline {path}"
    init = read([path], "Trainer.__init__")
    assert [len(each) for each in init.steps.values()] == [1, 1]


def test_several_methods_need_a_choice(tmp_path):
    tasks = [task("a", method, at, 10, 5) for method in ("T.step", "T.eval") for at in (0, 100)]
    path = timeline(tmp_path, *tasks)
    with pytest.raises(ConfigError, match=r"(?s)Say --event METHOD.*T.eval \(2 calls in 1 proc"):
        read([path])
    with pytest.raises(ConfigError, match=r"unknown method 'T.stp'; did you mean 'T.step'"):
        read([path], "T.stp")


def test_an_event_is_only_named_of_a_timeline(tmp_path):
    with pytest.raises(ConfigError, match="--event: only of a Ray timeline"):
        read([trace(tmp_path, "a.json", step(0))], "T.step")


# ---- tables and runs ----


def test_a_long_table_may_have_ranks_of_different_lengths_and_it_is_said(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("worker,step,seconds\na,0,1\na,1,2\nb,0,3\n")
    steps = read([str(path)])
    assert (steps.shortest, steps.longest) == (1, 2)
    assert steps.remarks == (
        "Ranks have 1 to 2 steps; one that is through with its own begins them again.",
    )


def test_a_worker_whose_pushes_never_arrived_is_left_out_and_named(tmp_path):
    record = raysync.run(
        {
            "engine": "virtual",
            "timing": "only",
            "paradigm": "asp",
            "workers": [{"name": "quick", "step_s": 1}, {"name": "stuck", "step_s": 50}],
            "workload": {"samples": 320},
            "output": str(tmp_path),
        }
    )
    steps = read([str(record.path)])
    assert list(steps.steps) == ["quick-0"]
    assert steps.remarks[0] == "stuck-0 is left out: none of its pushes arrived."
    assert steps.batch_size == 32


def test_pushes_of_different_sizes_are_counted_and_not_their_samples(tmp_path):
    record = raysync.run(
        {
            "engine": "virtual",
            "timing": "only",
            "paradigm": "asp",
            "workers": [{"step_s": 1}, {"name": "large", "step_s": 1, "batch_size": 64}],
            "workload": {"samples": 960},
            "output": str(tmp_path),
        }
    )
    steps = read([str(record.path)])
    assert steps.batch_size is None
    assert steps.remarks == ("Its pushes have 32 to 64 samples, so steps are counted.",)


def test_a_decoupled_run_has_no_steps_of_whole_models(tmp_path):
    record = raysync.run(
        {
            "engine": "virtual",
            "timing": "only",
            "paradigm": {"name": "decoupled", "modules": 2},
            "model": "mlp",
            "workers": [{"count": 2, "step_s": 1}],
            "workload": {"samples": 320},
            "output": str(tmp_path),
        }
    )
    with pytest.raises(ConfigError, match="its steps are those of the stages of a decoupled run"):
        read([str(record.path)])
