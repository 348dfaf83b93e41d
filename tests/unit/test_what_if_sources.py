"""The sources of `raysync whatif`: real traces of torch's profiler, Ray timelines, tables, runs;
what is wrong with them.
"""

import gzip
import json
import os
import tracemalloc
from pathlib import Path
from random import Random
from time import perf_counter

import pyarrow as pa
import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

import raysync
from raysync.errors import ConfigError
from raysync.predict.step_times import json_stream, time_spans, trace_files
from raysync.predict.step_times.rank_step_times import read
from raysync.predict.what_if import slowest
from tests.builders.files import write
from tests.builders.messages import Telling, naming, tells
from tests.builders.profiles import sized, step, trace, work


def profiled(folder, ranks=2, active=4):
    """Train a little under torch's profiler, once a rank; return rank -> least and most seconds of
    each step: a clock around what it does, and one that is around the profiler's work, too.
    """
    seconds = {}
    for rank in range(ranks):
        model = torch.nn.Linear(64, 64)
        begun, ended, before = [], [], [perf_counter()]
        with profile(
            activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=active)
        ) as profiler:
            for number in range(active + 2):
                begun.append(perf_counter())
                for _ in range(4 * (rank + number)):
                    model(torch.randn(64, 64)).sum().backward()
                before.append(perf_counter())
                if number < active + 1:
                    profiler.step()
                    ended.append(perf_counter())
        ended.append(perf_counter())
        profiler.export_chrome_trace(str(folder / f"rank{rank}.1700.pt.trace.json"))
        seconds[f"rank{rank}"] = [
            (done - begin, end - earlier)
            for begin, done, earlier, end in zip(begun, before[1:], before, ended, strict=False)
        ][2:]
    return seconds


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_real_traces_of_torch_s_profiler(tmp_path):
    seconds = profiled(tmp_path)
    names = [str(path) for path in sorted(tmp_path.iterdir())]
    steps = read(names)
    assert list(steps.steps) == ["rank0", "rank1"]
    for rank, bounds in seconds.items():
        for step_s, (least, most) in zip(steps.steps[rank], bounds, strict=True):
            assert least * 0.98 - 1e-4 < step_s < most * 1.02 + 1e-4
    assert tells(steps.source, "2 torch's")
    assert read([str(tmp_path)]).steps == steps.steps  # the folder of the traces
    for name in names:
        Path(f"{name}.gz").write_bytes(gzip.compress(Path(name).read_bytes()))
    assert read([f"{name}.gz" for name in names]).steps == steps.steps


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
    assert steps.remarks == (Telling("1 3 9"),)


def test_the_gpu_s_part_of_a_step_is_not_another_step(tmp_path):
    gpu = step(0, 700, cat="gpu_user_annotation")
    assert read([trace(tmp_path, "a.json", gpu, step(0))]).steps == {"a": (0.001,)}


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ([step(0), step(1)], [step(1)], "b: ProfilerStep#0"),
        ([step(0), step(1)], [step(0), step(2)], "b: ProfilerStep#1"),
        ([step(0), step(0)], [step(0)], "a.json: ProfilerStep#0"),
        ([step(0, -5)], [step(0)], "a.json: ProfilerStep#0 -5 0"),
        ([step(0)], [{"ph": "X", "name": "matmul"}], "b.json:"),
        ([step(0, "1")], [step(0)], "ProfilerStep#0 '1'"),
        ([{"ph": "X", "name": "matmul"}], [step(0)], "a.json: ProfilerStep#N"),
        ([{"ph": "X", "cat": "task::T.step", "ts": 0, "dur": 1}], [step(0)], "Ray one file"),
        ([step(0), work(0, 1000, "gloo:all_reduce")], [step(0)], "a.json: ProfilerStep#0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_with_traces(tmp_path, first, second, says):
    files = [trace(tmp_path, "a.json", *first), trace(tmp_path, "b.json", *second)]
    with pytest.raises(ConfigError, match=naming(says)):
        read(files)


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
            work(0, 900, "nccl:all_reduce", "user_annotation"),
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


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.json", "", "line 1:"),
        ("x.json", '{"traceEvents": [\n1, }', "line 2:"),
        ("x.json", "{}", "traceEvents"),
        ("x.json", "7", "traceEvents"),
        ("x.json", "[1, null]", "tasks"),
        ("x.json", "[" * 100_000, "trace"),
        ("x.json.gz", "plain", ""),
    ],
    ids=["empty", "damaged", "object", "number", "list", "deep", "not packed"],
)
def test_a_file_that_is_no_trace(tmp_path, name, text, says):
    with pytest.raises(ConfigError, match=naming(f"{name}: {says}")):
        read([write(tmp_path / name, text)])


# ---- what Chrome reads ----


def ddp(number, compute_us, collective="ncclDevKernel_AllReduce_Sum", whole_us=1000.0, name="gemm"):
    """Three events of a step that lasts as long as that of the slowest rank."""
    return [
        step(number, whole_us),
        work(number * 2000, compute_us, name, "kernel"),
        work(number * 2000 + compute_us, whole_us - compute_us, collective, "kernel"),
    ]


def two_ranks(**more):
    return [json.dumps({"traceEvents": ddp(0, us), **more}) for us in (250.0, 750.0)]


WINDOWS = r"C:\Users\me\new\temp\u\log.json"
TOLERATED = {
    "a path of Windows": lambda text: text.replace("PLACE", WINDOWS),
    "such a path, and one that is written right": lambda text: text.replace(
        "PLACE", WINDOWS + json.dumps(WINDOWS)[1:-1]
    ),
    "stray bytes": lambda text: text.replace("PLACE", "\udce9\udcff"),
    "control characters": lambda text: text.replace("PLACE", "a\tb\0"),
    "no end": lambda text: text.rpartition("}]")[0] + "}",
    "no end behind a comma": lambda text: text.rpartition("}]")[0] + "},\n",
    "both": lambda text: text.replace("gemm", WINDOWS).rpartition("}]")[0] + "}",
}


@pytest.mark.parametrize("what", TOLERATED)
@pytest.mark.parametrize("form", ["object", "list"])
@pytest.mark.parametrize("block", [1, 7, 10**6])
def test_a_trace_that_chrome_reads_is_read(tmp_path, what, form, block, monkeypatch):
    monkeypatch.setattr(trace_files, "BLOCK_BYTES", block)
    for rank, text in enumerate(two_ranks(traceName="PLACE")):
        if form == "list":
            text = json.dumps([*json.loads(text)["traceEvents"], {"ph": "M", "name": "PLACE"}])
        damaged = TOLERATED[what](text)
        (tmp_path / f"rank{rank}.json").write_bytes(damaged.encode(errors="surrogateescape"))
    assert read([str(tmp_path)]).steps == {
        "rank0": pytest.approx([0.00025]),
        "rank1": pytest.approx([0.00075]),
    }


@pytest.mark.parametrize(
    "number",
    ["1e300", "1" + "0" * 400, "1e400", "NaN", "-Infinity", "1" + "0" * 5000, "null", '"1"'],
)
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_no_number_of_microseconds_is_refused_with_the_file(tmp_path, key, number):
    event = json.dumps(step(0)).replace(
        f'"{key}": {json.dumps(step(0)[key])}', f'"{key}": {number}'
    )
    (tmp_path / "x.json").write_text(f"[{event}]")
    with pytest.raises(ConfigError, match=r"x\.json"):
        read([str(tmp_path / "x.json")])


def test_memory_is_bounded_by_what_is_kept_and_not_by_the_size_of_the_file(tmp_path):
    path = tmp_path / "x.json"
    kernel = json.dumps(work(0, 1000, "gemm" + 300 * "_", "kernel"))
    with path.open("w") as file:
        file.write(f"[{json.dumps(step(0))}")
        file.writelines(f", {kernel}" for _ in range(60_000))
    size = path.stat().st_size
    read([str(path)])  # imports
    tracemalloc.start()
    assert read([str(path)]).steps == {"x": (0.001,)}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 20e6
    assert peak < size / 2


def test_neither_the_order_of_events_nor_when_they_are_put_together_matters(tmp_path, monkeypatch):
    steps = [
        event
        for number in range(20)
        for event in (
            *ddp(number, 100.0 + number),
            sized("allreduce", 2**number, 0, 2000 * number + 10),
        )
    ]
    ordered = read([trace(tmp_path, "a.json", *steps)])
    Random(1).shuffle(steps)
    assert read([trace(tmp_path, "a.json", *steps)]) == ordered
    monkeypatch.setattr(time_spans, "AT_ONCE", 3)
    assert read([trace(tmp_path, "a.json", *steps)]) == ordered


def test_what_is_done_of_all_files_is_shown(tmp_path):
    files = [trace(tmp_path, f"{rank}.json", *map(step, range(9))) for rank in "ab"]
    shown = []
    read(files, show=lambda done, total: shown.append((done, total)))
    sizes = [Path(name).stat().st_size for name in files]
    assert shown == [(sizes[0], sum(sizes)), (sum(sizes), sum(sizes))]


def test_a_packed_trace_is_read_and_one_that_is_cut_off_is_refused(tmp_path):
    for suffix, codec in ((".gz", "gzip"), (".zst", "zstd")):
        path = tmp_path / f"rank0.json{suffix}"
        data = pa.compress(json.dumps([step(0)]).encode(), codec=codec, asbytes=True)
        path.write_bytes(data)
        assert read([str(path)]).steps == {"rank0": (0.001,)}
        path.write_bytes(data[:-9])
        with pytest.raises(ConfigError, match=suffix):
            read([str(path)])


def test_a_file_that_its_writer_left_within_an_event_has_the_events_before(tmp_path):
    text = two_ranks()[0]
    end = text.index("nccl")
    (tmp_path / "a.json").write_text(text[:end] + "lambda(){}")
    assert read([str(tmp_path / "a.json")]).steps == {"a": (0.001,)}


@pytest.mark.parametrize("damage", ['"x" "y"', '"x'])
def test_damage_within_a_trace_is_named_with_its_line_before_all_is_read(
    tmp_path, damage, monkeypatch
):
    monkeypatch.setattr(json_stream, "LARGEST_VALUE", 1000)
    monkeypatch.setattr(trace_files, "BLOCK_BYTES", 100)
    path = tmp_path / "a.json"
    good = json.dumps(step(0)) + ",\n"
    without_quotes = ("1, " * 99 + "\n") * 99
    path.write_text(f"[{good}{{{damage}}},\n{without_quotes}]")
    shown = []
    with pytest.raises(ConfigError, match=r"a\.json: line 2:"):
        read([str(path)], show=lambda done, total: shown.append((done, total)))
    done, total = shown[-1]
    assert done < total / 2


def test_a_pipe_is_no_trace_and_does_not_hold_up(tmp_path):
    os.mkfifo(tmp_path / "x.json")
    for name in (tmp_path, tmp_path / "x.json"):
        with pytest.raises(ConfigError, match=r"x\.json"):
            read([str(name)])


# ---- which rank ----


def places(folder, *names):
    """Write a trace of a step under each name; the steps of later ones are longer."""
    for number, name in enumerate(names, 1):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps([step(0, 1000.0 * number)])
        path.write_bytes(
            gzip.compress(text.encode()) if name.lower().endswith("gz") else text.encode()
        )


@pytest.mark.parametrize(
    ("files", "ranks"),
    [
        (["n1.a.org_7.1700000.pt.trace.json", "n2.a.org_7.1700001.pt.trace.json"], "n1.a.org_7 n2"),
        (["10.0.0.1.pt.trace.json", "10.0.0.2.pt.trace.json"], "10.0.0.1 10.0.0.2"),
        (["n.a.org.json", "n.b.org.json.gz"], "n.a.org n.b.org"),
        (["RANK0_TRACE.JSON", "rank_1.JSON.GZ"], "rank0 rank1"),
        (["rank0/trace.json", "rank1/trace.json"], "rank0 rank1"),
        (["node0/rank0.json", "node1/rank0.json"], "node0 rank0|node1 rank0"),
        (["rank10.json", "rank9.json"], "rank9 rank10"),
    ],
)
def test_files_with_different_names_are_different_ranks(tmp_path, files, ranks):
    places(tmp_path, *files)
    found = list(read([str(tmp_path)]).steps)
    expected = ranks.split("|") if "|" in ranks else ranks.split()
    assert all(name.startswith(each) for name, each in zip(found, expected, strict=True))
    assert len({*found}) == 2


@pytest.mark.parametrize(
    "files",
    [
        ["iteration_10/rank0_trace.json", "iteration_20/rank0_trace.json"],
        ["before/rank0.json", "after/rank0.json"],
        ["h_7.17000.pt.trace.json", "h_7.17001.pt.trace.json"],
        ["rank0.json", "rank_00.json.gz"],
    ],
)
def test_two_files_of_one_rank_with_the_same_step_are_refused(tmp_path, files):
    places(tmp_path, *files)
    with pytest.raises(ConfigError) as raised:
        read([str(tmp_path)])
    assert all(name in str(raised.value) for name in files)


def test_folders_of_several_times_of_profiling_are_put_together(tmp_path):
    for number in (3, 7):
        for rank, us in enumerate((1000.0, 2000.0)):
            folder = tmp_path / f"iteration_{number}"
            folder.mkdir(exist_ok=True)
            trace(folder, f"rank{rank}_trace.json", step(number, us * number))
    assert read([str(tmp_path)]).steps == {
        "rank0": pytest.approx((0.003, 0.007)),
        "rank1": pytest.approx((0.006, 0.014)),
    }


def test_a_world_of_one_rank_says_nothing_of_which_rank_it_is(tmp_path):
    alone = {"distributedInfo": {"rank": 0, "world_size": 1}}
    files = [
        trace(tmp_path, f"{name}.json", step(0, us), **alone)
        for name, us in (("a", 1.0), ("b", 2.0))
    ]
    assert list(read(files).steps) == ["a", "b"]


# ---- what communication is ----


LIBRARIES = [
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, ...)",
    "void ncclKernel_SendRecv_RING_SIMPLE",
    "rcclGenericKernel",
    "hcom_allReduce__521_0_1",
    "hcom_broadcast__521_0_1",
    "hccl_kernel",
    "xccl:all_reduce",
    "oneccl_allreduce_pcie",
    "mscclKernel_Sum_float_Simple",
    "MPI_Allreduce",
    "void vllm::cross_device_reduce_1stage<float, 2>",
    "userbuffers_fp16_sum_inplace_gpu_rr",
    "my_all_gather_kernel",
    "reduce_scatter_ring",
]
WORK = [
    "occlusion_kernel",
    "void softmaxBlockAllReduce<float>",
    "warpAllReduce",
    "ampere_sgemm_128x64",
    "reduce_kernel<512, 1>",
    "broadcast_add",
    "compile",
]


@pytest.mark.parametrize("name", [*LIBRARIES, *WORK])
def test_kernels_of_any_library_of_collectives_are_taken_off_and_others_are_work(tmp_path, name):
    [found] = read([trace(tmp_path, "a.json", *ddp(0, 400.0, name))]).steps.values()
    assert found == pytest.approx((1000e-6 if name in WORK else 400e-6,))


@pytest.mark.parametrize(
    "name",
    [
        "gloo:all_reduce",
        "mpi:broadcast",
        "hccl:all_reduce",
        "mine:barrier",
        "mine:send",
        "my.comm:_reduce",
        "c10d::allreduce_",
        "_c10d_functional::all_reduce",
        "MyComm.all_to_all",
    ],
)
def test_ranges_of_any_backend_are_taken_off_and_not_the_calls_of_python(tmp_path, name):
    for label, category, expected in (
        (name, "user_annotation", 400e-6),
        (f"dist.py(7): {name}", "python_function", 1e-3),
    ):
        events = [step(0), work(0, 400), work(400, 600, label, category)]
        [found] = read([trace(tmp_path, "a.json", *events)]).steps.values()
        assert found == pytest.approx((expected,))


def test_what_torch_marks_as_a_collective_is_one_whatever_its_name(tmp_path):
    marked = {**work(300, 700, "mine", "kernel"), "args": {"Collective name": "allreduce"}}
    path = trace(tmp_path, "a.json", step(0), work(0, 300, "gemm", "kernel"), marked)
    assert read([path]).steps["a"] == pytest.approx((300e-6,))


def test_whether_steps_may_include_waiting_is_known(tmp_path):
    hidden = [trace(tmp_path, f"{name}.json", step(0), work(0, 900)) for name in "ab"]
    assert read(hidden).may_wait
    seen = [trace(tmp_path, f"{name}.json", *ddp(0, 400.0)) for name in "ab"]
    assert not read(seen).may_wait


# ---- what a step exchanges ----


@pytest.mark.parametrize(
    ("collectives", "expected"),
    [
        ([sized("allreduce", 100, 100), sized("allreduce_coalesced", 50, 50)], 600),
        ([sized("allreduce", 100, 100), sized("allreduce", 100, 100, cat="cpu_op")], 400),
        ([sized("allreduce", 100, 100, cat="cpu_op")], 400),
        ([sized("_reduce_scatter_base", 400, 100), sized("_allgather_base", 100, 400)], 1600),
        ([sized("_allgather_base", 100, 400)], None),
        ([sized("allreduce", 100, 100, dtype="bfloat16")], 200),
        ([sized("allreduce", 100, 100, dtype="Float8_e4m3fn")], 100),
        ([sized("allreduce", 100, 100), sized("broadcast", 7, 7)], 400),
        ([sized("broadcast", 7, 7)], None),
        ([sized("allreduce", 100, 100, dtype="new")], None),
        ([sized("allreduce", "many", None)], None),
        ([work(400, 100, "ncclDevKernel_AllReduce", "kernel")], None),
    ],
)
def test_the_bytes_that_a_step_exchanges(tmp_path, collectives, expected):
    path = trace(tmp_path, "a.json", step(0), work(0, 300, "gemm", "kernel"), *collectives)
    assert read([path]).exchanged_bytes == expected


def test_the_bytes_are_those_of_most_steps_on_all_ranks(tmp_path):
    files = [
        trace(
            tmp_path,
            f"{rank}.json",
            *map(step, range(4)),
            sized("allreduce", 9, 9, 10),
            *(sized("allreduce", 1, 1, 2000 * number + 10) for number in (1, 2, 3)),
        )
        for rank in "ab"
    ]
    assert read(files).exchanged_bytes == 4


def test_the_time_of_communication_alone_is_known_by_rank(tmp_path):
    hidden = [work(0, 3000, "gemm", "kernel")]
    hidden += [work(at, 9, "ncclDevKernel_AllReduce_Sum", "kernel") for at in (500, 2500)]
    files = [
        trace(tmp_path, "a.json", *ddp(0, 400.0), *ddp(1, 200.0)),
        trace(tmp_path, "b.json", *map(step, range(2)), *hidden),
    ]
    assert read(files).exposed_s == pytest.approx({"a": 700e-6, "b": 0.0})


# ---- when ranks ran ----


def test_a_rank_that_stops_early_bounds_the_steps_and_is_named(tmp_path):
    files = [
        trace(tmp_path, "a.json", *map(step, range(5))),
        trace(tmp_path, "b.json", *map(step, range(3))),
        trace(tmp_path, "c.json", *map(step, range(5))),
    ]
    steps = read(files)
    assert (steps.shortest, steps.longest) == (3, 3)
    assert steps.remarks == (Telling("b ProfilerStep#4 2"),)


EPOCH_NS = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("bases", "is_said"),
    [
        ([EPOCH_NS, EPOCH_NS + 1_000_000], False),  # 1 ms later, of 5
        ([EPOCH_NS, EPOCH_NS + 60_000_000_000], True),
        ([EPOCH_NS, None], False),
    ],
)
@pytest.mark.parametrize("is_absolute", [False, True])
def test_ranks_that_did_not_run_at_the_same_time_are_named(tmp_path, bases, is_said, is_absolute):
    files = []
    for rank, base in enumerate(bases):
        shift = (base or 0) / 1000 if is_absolute else 0
        events = [step(n, ts=n * 2000.0 + shift) for n in range(3)]
        header = {"baseTimeNanoseconds": base} if base and not is_absolute else {}
        files.append(trace(tmp_path, f"rank{rank}.json", *events, **header))
    said = [Telling("rank0 rank1 60 s")] if is_said else []
    assert list(read(files).remarks) == said


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
    events = [event for each in tasks for event in each]
    return write(tmp_path / "timeline.json", json.dumps(events))


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
    with pytest.raises(ConfigError, match=naming("'T.stp' 'T.step'")):
        read([path], "T.stp")


def test_an_event_is_only_named_of_a_timeline(tmp_path):
    with pytest.raises(ConfigError, match=naming("--event:")):
        read([trace(tmp_path, "a.json", step(0))], "T.step")


# ---- tables and runs ----


def beginning(tmp_path, firsts, others, count=20):
    """Write a table whose ranks each have a first step of their own, and others around 1 s."""
    rows = [firsts, *([others] * count), [1.2 * each for each in others]]
    names = ",".join(f"r{n}" for n in range(len(firsts)))
    lines = [",".join(map(str, row)) for row in rows]
    return write(tmp_path / "t.csv", "\n".join([names, *lines]))


def test_a_first_step_far_beyond_its_rank_s_others_is_said_and_left_out_of_the_verdict(tmp_path):
    times = read([beginning(tmp_path, (1, 30, 3), (1.0, 1.5, 3.0))])
    assert {len(each) for each in times.steps.values()} == {21}
    assert tells(times.remarks[0], "r1 30 s 1.5 s")
    assert slowest(times) == ("r2", pytest.approx(2))
    several = read([beginning(tmp_path, (40, 30, 3), (1.0, 1.5, 3.0))])
    assert several.steps == times.steps
    assert tells(several.remarks[0], "r0 r1 r0: 40 s 1 s")


@pytest.mark.parametrize(
    ("firsts", "others", "count"),
    [
        ((4.9, 4.9), (1.0, 1.0), 20),  # long, but not far beyond
        ((8.0, 1.0), (8.0, 1.0), 20),  # as long as its others
        ((30.0, 1.0), (1.0, 1.0), 1),  # too few others
        ((1.0, 0.01), (1.0, 1.0), 20),  # short
    ],
)
def test_other_first_steps_stay(tmp_path, firsts, others, count):
    times = read([beginning(tmp_path, firsts, others, count)])
    assert (times.shortest, times.remarks) == (count + 2, ())


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("worker,step,seconds\na,0,1\na,1,2\nb,0,3\n", {"a": (1, 2), "b": (3,)}),
        # long, but not the longest
        ("a,b\n9,1\n1,1\n1,1\n10,1\n1,1\n", {"a": (9, 1, 1, 10, 1), "b": (1,) * 5}),
        # the only one of its rank
        (
            "worker,step,seconds\na,0,9\na,1,1\na,2,1\na,3,1\nb,0,1\n",
            {"a": (9, 1, 1, 1), "b": (1,)},
        ),
    ],
)
def test_ranks_may_have_different_lengths_which_is_said(tmp_path, text, steps):
    times = read([write(tmp_path / "t.csv", text)])
    assert times.steps == steps
    lengths = sorted({len(each) for each in steps.values()})
    assert (times.shortest, times.longest) == (lengths[0], lengths[-1])
    said = [Telling(f"{lengths[0]} {lengths[-1]}")] if len(lengths) > 1 else []
    assert list(times.remarks) == said


def test_several_tables_are_one(tmp_path):
    names = [
        write(tmp_path / f"steps-rank{n}.csv", f"worker,step,seconds\nrank{n},0,{n}\n")
        for n in (10, 9)
    ]
    steps = read(names)
    assert list(steps.steps.items()) == [("rank9", (9,)), ("rank10", (10,))]
    assert steps.exchanged_bytes is steps.exposed_s is None
    with pytest.raises(ConfigError, match=naming("rank10.csv: 'rank10'")):
        read([*names, names[0]])


def test_a_file_a_rank_as_tensorboard_downloads_it(tmp_path):
    names = []
    for rank in range(2):
        path = tmp_path / f"run-rank{rank}-tag-step_time.csv"
        path.write_text(f"Wall time,Step,Value\n1760000000.5,0,{rank + 1}\n1760000009.5,10,4\n")
        names.append(str(path))
    steps = read(names, columns="seconds=Value")
    assert steps.steps == {"run-rank0-tag-step_time": (1, 4), "run-rank1-tag-step_time": (2, 4)}
    assert steps.remarks == (Telling("Wall time"),)
    with pytest.raises(ConfigError, match=naming("rank0-tag-step_time.csv: Value seconds=Value")):
        read(names)


@pytest.mark.parametrize("deep", ["", "logs/version_0/"])
def test_a_file_a_rank_as_lightning_logs_it_is_called_after_its_folder(tmp_path, deep):
    names = []
    for rank in range(2):
        path = tmp_path / f"rank{rank}" / deep / "metrics.csv"
        path.parent.mkdir(parents=True)
        path.write_text(
            f"epoch,step,step_time_ms,train_loss,val_loss\n0,49,{rank + 1}000,2.5,\n0,99,4000,2,\n"
            "0,99,,,2.6\n1,149,5000,2,\n1,149,,,2.5\n"
        )
        names.append(str(path))
    steps = read(names)
    assert steps.steps == {"rank0": (1, 4, 5), "rank1": (2, 4, 5)}
    assert tells(steps.source, "2 tables ms")
    assert steps.remarks == (Telling("train_loss val_loss"), Telling("4"))


def test_files_with_the_same_title_of_a_column_are_no_ranks(tmp_path):
    names = [write(tmp_path / f"rank{rank}.csv", "step,took\n0,1\n") for rank in range(2)]
    with pytest.raises(ConfigError, match=naming("rank1.csv: 'took' --columns seconds=took")):
        read(names)
    assert list(read(names, columns="seconds=took").steps) == ["rank0", "rank1"]


def test_columns_are_said_of_tables_only(tmp_path):
    for names in ([trace(tmp_path, "a.json", step(0))], ["s3://bucket/run"]):
        with pytest.raises(ConfigError, match=naming("--columns: tables")):
            read(names, columns="seconds=took")


def test_a_folder_of_tables_is_refused_as_one(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}" / "metrics.csv").write_text("step,seconds\n0,1\n")
    with pytest.raises(ConfigError, match=naming(f"{tmp_path}: folder tables")):
        read([str(tmp_path)])
    with pytest.raises(ConfigError, match=naming("rank0: folder")):
        read([str(tmp_path / "rank0"), str(tmp_path / "rank1")])


@pytest.mark.slow
def test_a_table_of_a_million_steps_a_rank_is_read(tmp_path):
    text = "worker,step,seconds\n" + "".join(f"a,{n},0.{n}1\n" for n in range(10**6))
    assert read([write(tmp_path / "t.csv", text)]).shortest == 10**6


def of_run(tmp_path, *workers, **settings):
    """The path of a run in time only."""
    settings = {"paradigm": "asp", "workload": {"samples": 320}} | settings
    settings |= {"engine": "virtual", "timing": "only", "workers": workers, "output": str(tmp_path)}
    return [str(raysync.run(settings).path)]


def test_a_worker_whose_pushes_never_arrived_is_left_out_and_named(tmp_path):
    workers = {"name": "quick", "step_s": 1}, {"name": "stuck", "step_s": 50}
    steps = read(of_run(tmp_path, *workers))
    assert list(steps.steps) == ["quick-0"]
    assert tells(steps.remarks[0], "stuck-0 out:")
    assert steps.batch_size == 32


def test_pushes_of_different_sizes_are_counted_and_not_their_samples(tmp_path):
    workers = {"step_s": 1}, {"name": "large", "step_s": 1, "batch_size": 64}
    steps = read(of_run(tmp_path, *workers, workload={"samples": 960}))
    assert steps.batch_size is None
    assert steps.remarks == (Telling("32 64"),)


def test_a_decoupled_run_has_no_steps_of_whole_models(tmp_path):
    paths = of_run(
        tmp_path, {"count": 2, "step_s": 1}, paradigm={"name": "decoupled", "modules": 2}
    )
    with pytest.raises(ConfigError, match=naming("decoupled")):
        read(paths)
