"""Whole runs in which something goes wrong, in text files: its incidents, and what then
happens.

    pytest tests/engine --rewrite-scripts       writes what happens; read the diff like code

Above `----` stand the settings of the experiment, a line each (`workers`, `paradigm`, `samples`,
...; a batch has one sample, so samples are pushes), and its incidents, in the words of
`world.PHRASES`. Below it stands the journal, a line an entry: `w-0#1@3` is the push of that
worker's iteration 3, `v2` is version 2. Every journal must replay to the same decisions, too, and
keep what `tests.virtual.checker` knows.
"""

import re
from pathlib import Path

import pytest
import yaml

from raysync import config
from raysync.core.decisions import Apply, Drop, Hold, Release, SetTimer, Switch
from raysync.core.events import Joined, Left, Pushed, TimerFired
from raysync.core.journal import Checkpointed, Ended, Entry, Evaluation, Remark
from raysync.training.preparation import prepare
from tests.builders.virtual import DATA, TIMING, deep, replayed
from tests.engine.world import run_in
from tests.virtual.checker import Checker

SETTINGS = {"evaluation": {"marks": 1}}
SCRIPTS = sorted(Path(__file__).parent.glob("scripts/*.txt"))


def read(text):
    """The settings of a script, and its incidents."""
    settings, incidents = {}, []
    for line in text.partition("----")[0].splitlines():
        name, colon, value = line.partition(": ")
        if colon and name.isidentifier():
            settings[name] = yaml.safe_load(value)
        elif line and not line.startswith("#"):
            incidents.append(line)
    return settings, incidents


LINE = re.compile(r" \(/.*\.py:\d+\)")
"""Where the code that failed stands."""


def play(text):
    """The script with what happens in place of what it says."""
    settings, incidents = read(text)
    training = task_of(**settings)
    choice = training.experiment.paradigm
    driver, lines = run_in(training, choice.make(), *incidents)
    again = replayed(training, lines, choice)
    assert again.difference is None
    if choice.name != "decoupled":
        assert driver.members.unproven.keys() <= again.machine.roster.live.keys()
        checker = Checker(choice.name, None, training.workload_samples)
        for line in lines:
            if isinstance(line, Entry):
                checker.feed(line)
    killed = f", having killed {', '.join(driver.backend.killed)}" if driver.backend.killed else ""
    spawned = ", ".join(f"{worker} at {at:g}" for at, worker in driver.backend.spawned)
    started = f", and started {spawned}" if spawned else ""
    transcript = [*map(told, lines), f"over at {driver.backend.now:g}{killed}{started}"]
    return "\n".join([text.partition("----")[0] + "----", *transcript]) + "\n"


def told(line):
    """One line of a journal in short."""
    match line:
        case Entry(event=event, decisions=decisions, report=report):
            decided = "; ".join(merged(decisions)) or "nothing"
            return f"{event.at:g} {happened(event)}{reported(report)}: {decided}"
        case Evaluation(mark=mark, progress=progress, version=version, at=at):
            return f"{at:g} evaluated for mark {mark:g}: v{version} at progress {progress:g}"
        case Remark(at=at, text=text):
            return f"{at:g} remark: {text}"
        case Checkpointed(at=at, number=number):
            return f"{at:g} checkpoint {number}"
        case Ended(status=status, at=at, error=error, faults_without_effect=idle):
            return "".join(
                [
                    f"{at:g} {status}",
                    f": {LINE.sub('', error)}" if error else "",
                    *(f"; not met: {one}" for one in idle),
                ]
            )
    raise AssertionError(line)


def reported(report):
    if report.restart_in_s is not None:
        return f" ({report.why}; restart in {report.restart_in_s:g} s)"
    if report.why:
        return f" ({report.why})"
    if report.away_s is not None:
        return f" (away for {report.away_s:g} s)"
    return f" (held back for {report.held_back_s:g} s)" if report.held_back_s is not None else ""


def happened(event):
    match event:
        case Joined(worker=worker):
            return f"{worker} joined"
        case Left(worker=worker):
            return f"{worker} left"
        case Pushed(worker=worker, clock=clock, base=base):
            return f"{worker}@{clock} on v{base}"
        case TimerFired(key=key):
            return f"timer {key}"
    raise AssertionError(event)


def merged(decisions):
    """Decisions in short; releases of one version after another as one."""
    shown = []
    for decision in decisions:
        match decision:
            case Apply(pushes=pushes, version=version, publish=publish):
                shown.append(
                    f"v{version} = {' '.join(f'{worker}@{clock}' for worker, clock in pushes)}"
                    f"{'' if publish else ', not published'}"
                )
            case Release(worker=worker, clock=clock, version=version, pull=pull):
                behind = f" {'on' if pull else 'again on'} v{version}"
                same = bool(shown) and shown[-1].startswith("go ") and shown[-1].endswith(behind)
                before = shown.pop().removesuffix(behind) if same else "go"
                shown.append(f"{before} {worker}@{clock}{behind}")
            case Hold(worker=worker):
                shown.append(f"hold {worker}")
            case Drop(push=(worker, clock)):
                shown.append(f"drop {worker}@{clock}")
            case SetTimer(key=key, at=at):
                shown.append(f"timer {key} {'off' if at is None else f'at {at:g}'}")
            case Switch(to=to):
                shown.append(f"switch to {to}")
            case _:
                shown.append(f"{type(decision).__name__.lower()} {decision.worker}")
    return shown


def task_of(samples, **settings):
    return prepare(
        config.validate(TIMING | SETTINGS | settings | {"workload": {"samples": samples}}),
        deep,
        DATA,
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_run_goes_as_written(script, request):
    text = script.read_text(encoding="utf-8")
    played = play(text)
    if request.config.getoption("--rewrite-scripts"):
        script.write_text(played, encoding="utf-8")
    else:
        assert played == text
