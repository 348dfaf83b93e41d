"""A step ends on the GPU: times do not depend on how far the CPU runs ahead."""

import pytest

from raysync.errors import ConfigError
from raysync.predict.candidates import paradigms_in
from raysync.predict.step_times.rank_step_times import read
from raysync.predict.what_if import PredictionOptions, predict
from tests.builders.messages import naming
from tests.builders.profiles import sized, step, trace, work

LAUNCH_US = 100.0
"""For how long a CPU launches a step, if it waits for nothing."""


def numbered(event, number):
    return {**event, "args": {**event.get("args", {}), "correlation": number}}


def queued(numbers, kernels, reads, busy_until=0.0, category="cuda_runtime"):
    """Return the events of a CPU that launches each step's kernels, which queue up on the GPU.

    Args:
        numbers: of the steps.
        kernels: what makes a step's kernels, from the time at which they begin.
        reads: whether the CPU then waits for their result.
        busy_until: when the kernels of earlier steps end.
    """
    events, cpu, gpu = [], 0.0, busy_until
    for number in numbers:
        launched = [numbered(work(cpu + 2, 5, "cudaLaunchKernel", category), number)]
        for event in kernels(number, max(gpu, cpu + 10)):
            launched.append(numbered(event, number))  # a graph launches many kernels
            gpu = event["ts"] + event["dur"]
        end = max(cpu + LAUNCH_US, gpu) if reads else cpu + LAUNCH_US
        events += [step(number, end - cpu, ts=cpu), *launched]
        cpu = end
    return events


def computing(us):
    def kernels(number, begin):
        return [work(begin, us, "gemm", "kernel")]

    return kernels


def reducing(us, whole_us):
    """Compute, and reduce until the slowest rank is done: in each step one number more."""

    def kernels(number, begin):
        reduced = sized("allreduce", 100 + number, 100 + number, begin + us)
        last = work(begin + whole_us, 10, "adam", "kernel")
        return [work(begin, us, "gemm", "kernel"), {**reduced, "dur": whole_us - us}, last]

    return kernels


@pytest.mark.parametrize("category", ["cuda_runtime", "cuda_driver"])
@pytest.mark.parametrize("us", [300.0, 1000.0])
def test_a_step_takes_as_long_as_its_kernels_however_far_the_cpu_runs_ahead(tmp_path, us, category):
    """The GPU is idle for 10 us before a step that is launched after the one before."""
    ahead = queued(range(3, 9), computing(us), reads=False, category=category)
    [found] = read([trace(tmp_path, "a.json", *ahead)]).steps.values()
    assert found == pytest.approx([(us + 10) * 1e-6, *[us * 1e-6] * 5])
    read_each = queued(range(3, 9), computing(us), reads=True, category=category)
    [found] = read([trace(tmp_path, "b.json", *read_each)]).steps.values()
    assert found == pytest.approx([(us + 10) * 1e-6] * 6)


def test_a_step_that_the_cpu_makes_long_ends_with_the_cpu(tmp_path):
    events = queued(range(4), computing(LAUNCH_US / 2), reads=False)
    [found] = read([trace(tmp_path, "a.json", *events)]).steps.values()
    assert found == pytest.approx([LAUNCH_US * 1e-6] * 4)


def test_the_first_step_begins_after_kernels_that_were_launched_before_the_profile(tmp_path):
    events = queued(range(4), computing(300.0), reads=False, busy_until=700.0)
    before = [numbered(work(at, 350, "gemm", "kernel"), 99) for at in (0, 350)]
    [found] = read([trace(tmp_path, "a.json", *before, *events)]).steps.values()
    assert found == pytest.approx([300e-6] * 4)


def test_kernels_whose_launches_are_not_in_the_trace_change_no_step(tmp_path):
    events = queued(range(4), computing(300.0), reads=True)
    without = [event for event in events if event["name"] != "cudaLaunchKernel"]
    names = [trace(tmp_path, f"{n}.json", *each) for n, each in enumerate((events, without))]
    first, second = read(names).steps.values()
    assert first == second


def test_a_step_whose_kernels_end_before_those_of_the_step_before_is_refused(tmp_path):
    def kernels(number, begin):
        return [work(0, 5000 - number, "gemm", "kernel")]

    events = queued(range(4), kernels, reads=False)
    with pytest.raises(ConfigError, match=naming("a.json: ProfilerStep#1")):
        read([trace(tmp_path, "a.json", *events)])


@pytest.mark.parametrize("reads", [True, False])
def test_one_training_has_one_answer_whether_or_not_the_cpu_reads_each_loss(tmp_path, reads):
    """Ranks that compute for 400 and 1200 us and reduce: bsp takes 1210 us a round, and 10 us more
    where the GPU waits for a launch."""
    names = [
        trace(tmp_path, f"rank{n}.json", *queued(range(1, 13), reducing(us, 1300.0), reads))
        for n, us in enumerate((400.0, 1200.0))
    ]
    times = read(names)
    idle = 120 if reads else 10
    expected = {f"rank{n}": (12 * (us + 10) + idle) * 1e-6 for n, us in enumerate((400, 1200))}
    assert {rank: sum(each) for rank, each in times.steps.items()} == pytest.approx(expected)
    assert times.exchanged_bytes == 426  # 4 bytes times the median of 101 to 112
    [bsp] = predict(times, PredictionOptions(), paradigms_in(["bsp"])).comparison.predictions
    assert bsp.seconds == pytest.approx(expected["rank1"])
