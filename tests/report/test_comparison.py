"""What is compared follows from how runs ended: against a naive oracle, on random outcomes."""

from random import Random

import pytest
from hypothesis import given, strategies as st

from raysync.record.run_end import RunEnd
from raysync.results.comparison import Repeat, by_quality, by_target, by_whole_work

QUESTIONS = (by_target, by_whole_work, by_quality)
ENDS = (
    ("done", ""),
    ("diverged", ""),
    ("reached", "stop.at_target"),
    ("reached", "stop.when.progress"),
    ("cut", "stop.patience"),
    ("cut", "stop.after_s"),
    ("cut", "sweep.scheduler"),
    ("cut", "sweep.time_budget_s"),
    ("cut", "signal"),
    ("broken", "killed"),
    ("broken", "error"),
)


@st.composite
def repeats(draw):
    """Runs of up to three paradigms, each seed at most once."""
    found = []
    for paradigm in ("bsp", "asp", "ssp"):
        for seed in draw(st.sets(st.integers(0, 3), max_size=4)):
            kind, by = draw(st.sampled_from(ENDS))
            seconds = float(draw(st.integers(1, 9)))
            target_s = draw(st.none() | st.integers(1, int(seconds)).map(float))
            progress = 1.0 if kind == "done" else draw(st.sampled_from([0.25, 0.5]))
            final = draw(st.sampled_from([0.1, 0.5, 0.9]))
            limit = draw(st.sampled_from(["", "another"]))
            end = RunEnd(kind, by, seconds, progress)
            found.append(Repeat(paradigm, seed, end, target_s, final, limit))
    return found


def naive(repeats, question):
    """(paradigm, seed) -> value or None: what a careful person writes into the table by hand."""
    table = {}
    if question is by_quality:
        judged = [
            each
            for each in repeats
            if each.end.kind != "broken"
            and each.end.by not in ("signal", "sweep.time_budget_s", "sweep.scheduler")
        ]
        ends = {
            (each.end.by, each.limit) if each.end.by else "done"
            for each in judged
            if each.end.kind != "diverged"
        }
        fair = {"done"} | {
            (by, limit)
            for by in ("stop.when.progress", "stop.after_s")
            for limit in ("", "another")
        }
        if len(ends) < 2 and ends <= fair:
            for each in judged:
                table[each.paradigm, each.seed] = (
                    None if each.end.kind == "diverged" else each.final
                )
        return table
    times = {}
    for number, each in enumerate(repeats):
        time = each.target_s
        if question is by_whole_work:
            time = each.end.seconds if each.end.kind == "done" else None
        if each.end.kind != "broken" and time is not None:
            times[number] = time
    for number, each in enumerate(repeats):
        if each.end.kind == "broken":
            continue
        had_its_chance = each.end.kind in ("done", "diverged") or (
            times and all(each.end.seconds >= time for time in times.values())
        )
        if number in times or had_its_chance:
            table[each.paradigm, each.seed] = times.get(number)
    return table


def values(compared):
    return {
        (paradigm, seed): value
        for paradigm, seeds in compared.values.items()
        for seed, value in seeds.items()
    }


@pytest.mark.parametrize("question", QUESTIONS)
@given(runs=repeats(), order=st.randoms())
def test_it_is_what_a_careful_person_would_compare(question, runs, order):
    compared = question(runs)
    assert values(compared) == naive(runs, question)
    if not compared.cause:
        left_out = {(each.paradigm, each.seed) for each in compared.left_out}
        assert left_out | values(compared).keys() == {(run.paradigm, run.seed) for run in runs}
        assert not left_out & values(compared).keys(), "named, or compared"
    shuffled = list(runs)
    Random(order.random()).shuffle(shuffled)
    assert values(question(shuffled)) == values(compared)


@given(runs=repeats())
def test_the_seeds_that_all_have_in_common(runs):
    compared = by_target(runs)
    with_results = [set(seeds) for seeds in compared.values.values() if seeds]
    common = compared.common_seeds
    assert all(common <= seeds for seeds in with_results) or not set.intersection(*with_results)
    assert bool(common) == bool(with_results)
