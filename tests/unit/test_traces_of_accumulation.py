"""Traces with gradient accumulation: an exchange in every n-th step takes place and costs so."""

import json

import pytest

from raysync.errors import ConfigError
from raysync.predict.step_times.rank_step_times import read
from tests.builders.files import write
from tests.builders.messages import naming, tells
from tests.builders.profiles import sized, step, trace, work

FLOATS = 5_000_000
COMPUTING_US = (300.0, 500.0, 400.0)
GROUP = {"Group size": 3}


def accumulated(tmp_path, every, first, steps=30, is_marked=True, numbers=None):
    """Write the traces of three ranks that reduce gradients in a step and each n-th after it, and
    the mean of a loss in each step.
    """
    for rank, us in enumerate(COMPUTING_US):
        events = []
        for at, number in enumerate(numbers or range(steps)):
            begin = 2000.0 * number
            events += [step(number), work(begin, us, "gemm", "kernel")]
            exchanges = [FLOATS] * (at >= first and (at - first) % every == 0)
            if is_marked:
                reduced = [*exchanges, 1]
                events += [sized("allreduce", n, n, begin + 600, **GROUP) for n in reduced]
            elif exchanges:
                events.append(work(begin + 600, 100, "ncclDevKernel_AllReduce_Sum", "kernel"))
            events.append(work(begin + 900, 100, "adam", "kernel"))
        trace(tmp_path, f"rank{rank}.json", *events)
    return str(tmp_path)


def whatif(call, *options):
    code, out, err = call("whatif", ".", "--json", "--paradigm", "bsp", *options)
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize(("every", "first"), [(1, 0), (2, 1), (3, 0), (5, 2), (5, 4), (10, 3)])
@pytest.mark.parametrize("is_marked", [True, False])
def test_an_exchange_in_every_nth_step_is_priced_so(tmp_path, call, every, first, is_marked):
    """A ring of three moves 4/3 of the gradients over each link: 20 MB at 1 Gb/s take 213 ms."""
    accumulated(tmp_path, every, first, is_marked=is_marked)
    size = [] if is_marked else ["--model-bytes", "20MB"]
    answer = whatif(call, "--link", "1gbit", "--exchange", "ring", *size)
    assert answer["steps_per_exchange"] == every
    [bsp] = answer["paradigms"]
    longest_s = max(rank["mean_s"] for rank in answer["ranks"])
    exchange_s = 4 / 3 * 4 * FLOATS / 125e6
    assert bsp["seconds"] == pytest.approx(30 * longest_s + 30 / every * exchange_s)
    assert bsp["steps_per_s"]["value"] == pytest.approx(3 * 30 / bsp["seconds"])


def test_ranks_wait_for_each_other_only_where_they_exchange(tmp_path, call):
    """a is slow in even steps, b in odd ones: after each second step both are ready."""
    for rank, slow in (("a", 0), ("b", 1)):
        events = []
        for number in range(12):
            us = 900.0 if number % 2 == slow else 100.0
            events += [step(number, us + 50), work(2000 * number, us, "gemm", "kernel")]
            if number % 2:
                events.append({**sized("allreduce", 9, 9, 2000 * number + us), "dur": 50})
        trace(tmp_path, f"{rank}.json", *events)
    [bsp] = whatif(call)["paradigms"]
    assert bsp["seconds"] == pytest.approx(6 * 1050e-6, rel=0.05)
    assert bsp["wait_fraction"]["value"] == pytest.approx(0, abs=0.05)


def test_pauses_of_the_profiler_are_no_longer_rounds(tmp_path):
    numbers = [*range(4, 12), *range(104, 112)]
    times = read([accumulated(tmp_path, every=4, first=3, numbers=numbers)])
    assert times.steps_per_exchange == 4


def test_one_exchange_does_not_say_how_often_it_is(tmp_path):
    files = accumulated(tmp_path, every=30, first=7)
    with pytest.raises(ConfigError, match=naming("rank0: 30 ProfilerStep#7")):
        read([files])


def test_work_is_a_whole_number_of_exchanges(tmp_path, call):
    accumulated(tmp_path, every=4, first=0)
    assert [whatif(call, *steps)["steps"] for steps in ([], ["--steps", "41"])] == [28, 44]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("whatif . --link 1gbit --curve steps=1..8", "--curve steps: 3"),
        ("advise x.yaml --steps .", "--steps: 3 raysync whatif"),
    ],
)
def test_what_accumulates_has_no_local_steps_and_no_advice(tmp_path, call, line, says):
    accumulated(tmp_path, every=3, first=0)
    write(tmp_path / "x.yaml", "{engine: virtual, timing: only, workers: [{count: 3}]}")
    code, out, err = call(*line.split())
    assert (code, out) == (2, "")
    assert tells(err, says)


@pytest.mark.parametrize("count", [0, 0.01])
def test_a_size_of_0_is_asked_for_by_the_option(tmp_path, call, count):
    for rank in "ab":
        reduced = [sized("allreduce", count, count, 2000 * number) for number in range(3)]
        trace(tmp_path, f"{rank}.json", *map(step, range(3)), work(0, 6000), *reduced)
    code, out, err = call("whatif", ".", "--link", "1gbit")
    assert (code, out) == (2, "")
    assert tells(err, "--link: --model-bytes")
