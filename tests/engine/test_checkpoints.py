"""Runs that are resumed from a checkpoint that was taken at any moment: what the journal then tells
is a possible history, and nothing is lost but what came after the cut.
"""

from collections import Counter
from contextlib import suppress

from hypothesis import assume, event, given, settings, strategies as st

from raysync.config import ParadigmChoice
from raysync.core.checkpoint import Checkpoint
from raysync.core.events import Pushed
from raysync.core.journal import Checkpointed, Ended, Entry, Resumed
from raysync.errors import RunFailed
from raysync.virtual.engine import VirtualEngine, driver_of
from tests.builders.paradigms import VARIANTS
from tests.builders.plans import plans
from tests.builders.virtual import replayed, timed

variants = st.sampled_from(list(VARIANTS))
cuts = st.lists(st.integers(0, 100), min_size=1, max_size=3)


def interrupted(task, choice, after, checkpoint=None):
    """The lines of a run up to the cut of a checkpoint that is asked for after so many events, and
    that checkpoint; None: the run was over before.
    """
    driver = driver_of(task, choice.make(), checkpoint)
    with suppress(RunFailed):
        driver.start()
        while driver.goes_on and not driver.checkpoints:
            if not after:
                driver._checkpointer.request()
            after -= 1
            driver.backend.wait()
    lines = driver.lines
    if not driver.checkpoints:
        return lines, None
    [checkpoint] = driver.checkpoints
    cut = lines.index(Checkpointed(checkpoint.at, checkpoint.number))
    return lines[: cut + 1], checkpoint


def resumed(task, choice, checkpoint):
    """The lines of a run from a checkpoint to its end."""
    reports = VirtualEngine().run(task, choice.make(), None, checkpoint)
    return [line for lines in reports if not isinstance(lines, Checkpoint) for line in lines]


@settings(max_examples=150)
@given(
    plans(), variants, st.integers(1, 150), st.lists(st.integers(0, 100), min_size=1, max_size=3)
)
def test_a_resumed_run_has_a_possible_history(plan, paradigm, pushes, cuts):
    """However often it is resumed: each event is legal, each decision that of a fresh machine."""
    name, parameters = VARIANTS[paradigm]
    task = timed(**plan, workload={"samples": pushes})
    choice = ParadigmChoice(name=name, **parameters)
    lines, checkpoint = [], None
    for after in cuts:
        more, following = interrupted(task, choice, after, checkpoint)
        if following is None:
            break
        checkpoint = following
        lines += [*more, Resumed(checkpoint.at, checkpoint.number)]
    assume(checkpoint is not None)
    lines += resumed(task, choice, checkpoint)
    again = replayed(task, lines, choice)
    assert again.difference is None
    roster = again.machine.roster
    assert roster.received == roster.applied + roster.dropped + len(roster.buffered)
    pushed = Counter(
        (line.event.worker, line.event.clock)
        for line in lines
        if isinstance(line, Entry) and isinstance(line.event, Pushed)
    )
    assert set(pushed.values()) <= {1}
    assert isinstance(lines[-1], Ended)
    event(lines[-1].status)
    if lines[-1].status == "finished":
        assert roster.samples_applied >= pushes
