"""Stories in text files: a paradigm, events, and under `----` the machine's golden answers.

    pytest tests/scripts --rewrite-scripts      writes the answers; read the diff like code

Lines before the first event: `workload SAMPLES` if there is one, then `paradigm NAME key=value
...`. Events: `AT join W`, `AT leave W`, `AT push W`, `AT timer KEY`. A push takes the iteration
that is under way and the version it was released with.
"""

from pathlib import Path

import pytest
import yaml

from raysync.core.decisions import (
    Apply,
    Drop,
    Hold,
    Note,
    Release,
    Restore,
    SetTimer,
    Suspend,
    Switch,
)
from raysync.core.events import Joined, Left, Pushed, TimerFired
from raysync.core.machine import Machine
from raysync.paradigms import make

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


def show(decision):
    match decision:
        case Apply(pushes=pushes, version=version, phase=phase, publish=publish):
            under = f" under {phase}" if phase else ""
            kept = "" if publish else ", not published"
            return (
                f"apply {' '.join(f'{worker}@{clock}' for worker, clock in pushes)} -> version"
                f" {version}{under}{kept}"
            )
        case Release(worker=worker, clock=clock, version=version, pull=pull):
            return (
                f"release {worker} clock={clock}"
                f" version={version}{'' if pull else ', without a pull'}"
            )
        case Hold(worker=worker, why=why):
            return f"hold {worker}: {why}"
        case Drop(push=(worker, clock), why=why):
            return f"drop {worker}@{clock}: {why}"
        case Note(kind=kind, worker=worker, values=values):
            return f"note {kind} {worker}: " + " ".join(
                f"{key}={value}" for key, value in values.items()
            )
        case Suspend(worker=worker, why=why):
            return f"suspend {worker} {why}"
        case Restore(worker=worker):
            return f"restore {worker}"
        case SetTimer(key=key, at=at):
            return f"timer {key}: {'off' if at is None else f'{at:g} s'}"
        case Switch(to=to, why=why):
            return f"switch to {to}: {why}"
        case _:
            return str(decision)


def play(text):
    """The script with the machine's answers in place of its own."""
    machine, lines, flying, workload = None, [], {}, None
    for line in text.splitlines():
        words = line.split()
        if not line or line.startswith("#"):
            if not (lines and lines[-1] == line == ""):
                lines.append(line)
        elif words[0] == "workload":
            workload = int(words[1])
            lines.append(line)
        elif words[0] == "paradigm":
            parameters = {k: yaml.safe_load(v) for k, v in (word.split("=") for word in words[2:])}
            machine = Machine(make(words[1], **parameters), workload)
            lines.append(line)
        elif words[0].replace(".", "").isdecimal():
            event = read_event(machine, flying, float(words[0]), words[1], " ".join(words[2:]))
            decisions = machine.handle(event)
            flying |= {d.worker: (d.clock, d.version) for d in decisions if isinstance(d, Release)}
            lines += [line, "----", *map(show, decisions)]
    return "\n".join(lines).rstrip() + "\n"


def read_event(machine, flying, at, verb, name):
    match verb:
        case "join":
            return Joined(at=at, worker=name)
        case "leave":
            return Left(at=at, worker=name)
        case "push":
            clock, base = flying[name]
            return Pushed(at=at, worker=name, clock=clock, base=base, samples=1, busy_s=0.0)
        case "timer":
            return TimerFired(at=at, key=name)
    raise AssertionError(verb)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_machine_answers_as_written(script, request):
    text = script.read_text(encoding="utf-8")
    answered = play(text)
    if request.config.getoption("--rewrite-scripts"):
        script.write_text(answered, encoding="utf-8")
    assert answered == text


def test_there_is_a_script_for_every_paradigm():
    from raysync.core.paradigm import Paradigm
    from raysync.paradigms import PARADIGMS

    paradigms = {name for name, paradigm in PARADIGMS.items() if issubclass(paradigm, Paradigm)}
    assert paradigms <= {script.stem.partition("_")[0] for script in SCRIPTS}
