"""Transcripts in text files: a paradigm, events, and under `----` the machine's answers.

    paradigm ssp staleness=1
    0 join a#1
    ----
    release a#1 clock=0 version=0
    1 push a#1
    ----
    apply a#1@0 -> version 1
    release a#1 clock=1 version=1

The head has `workload SAMPLES`, if the paradigm reads progress, and `paradigm NAME key=value ...`,
where NAME may be `package.module:Class`. Events: `AT join W`, `AT leave W`, `AT push W`, `AT timer
KEY`. A push belongs to the iteration in flight, with the version and the steps of its release.
"""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path
from typing import assert_never

from raysync.config.yaml_reading import read_yaml
from raysync.core.decisions import (
    Apply,
    Decision,
    Drop,
    Hold,
    Note,
    Release,
    Restore,
    SetTimer,
    Suspend,
    Switch,
)
from raysync.core.events import Event, Joined, Left, Pushed, TimerFired
from raysync.core.machine import Machine
from raysync.core.paradigm import Paradigm
from raysync.errors import ConfigError
from raysync.paradigms import make


def check_script(path: Path, *, rewrite: bool = False) -> None:
    """Play a script and compare the answers with its own; `rewrite` writes them instead."""
    text = path.read_text(encoding="utf-8")
    answered = play(text, str(path))
    if rewrite:
        path.write_text(answered, encoding="utf-8")
    else:
        assert answered == text, _difference(text, answered, str(path))


def _difference(written: str, answered: str, source: str) -> str:
    lines = unified_diff(
        written.splitlines(), answered.splitlines(), f"{source}, as written", "as answered"
    )
    return "\n".join(lines)


def play(text: str, source: str = "the script") -> str:
    """Replace a script's answers by the machine's; raise `ConfigError` at an unreadable line."""
    machine: Machine | None = None
    lines: list[str] = []
    workload = None
    released: dict[str, Release] = {}  # worker -> its latest release
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        where = f"{source}:{number}"
        if not line or line.startswith("#"):
            if not (lines and lines[-1] == line == ""):
                lines.append(line)
        elif words[0] == "workload":
            workload = int(words[1])
            lines.append(line)
        elif words[0] == "paradigm":
            machine = Machine(_make_paradigm(words[1:], where), workload)
            lines.append(line)
        elif words[0].replace(".", "").isdecimal():
            if machine is None:
                raise ConfigError(f"{where}: an event comes before the line `paradigm NAME`.")
            decisions = machine.handle(_parse_event(words, released, where))
            released |= {each.worker: each for each in decisions if isinstance(each, Release)}
            lines += [line, "----", *map(decision_text, decisions)]
    return "\n".join(lines).rstrip() + "\n"


def _make_paradigm(words: list[str], where: str) -> Paradigm:
    name, *settings = words
    pairs = (setting.partition("=") for setting in settings)
    paradigm = make(name, **{key: read_yaml(value, where) for key, _, value in pairs})
    if not isinstance(paradigm, Paradigm):
        raise ConfigError(f"{where}: {name} is not a Paradigm, but a run of several machines.")
    return paradigm


def _parse_event(words: list[str], released: dict[str, Release], where: str) -> Event:
    at, verb, name = float(words[0]), words[1], " ".join(words[2:])
    match verb:
        case "join":
            return Joined(at=at, worker=name)
        case "leave":
            return Left(at=at, worker=name)
        case "push" if name in released:
            release = released[name]
            steps = release.steps or 1
            return Pushed(
                at=at,
                worker=name,
                clock=release.clock,
                base=release.version,
                samples=steps,
                busy_s=0.0,
                steps=steps,
            )
        case "push":
            raise ConfigError(f"{where}: {name!r} pushes, but was never released.")
        case "timer":
            return TimerFired(at=at, key=name)
    raise ConfigError(f"{where}: {verb!r}; an event is one of join, leave, push and timer.")


def decision_text(decision: Decision) -> str:
    """Format a decision as a line of a script."""
    match decision:
        case Apply(pushes=pushes, version=version, phase=phase, publish=publish, weights=weights):
            applied = " ".join(f"{worker}@{clock}" for worker, clock in pushes)
            weighed = f" weighted {' '.join(f'{weight:g}' for weight in weights)}" * bool(weights)
            under = f" under {phase}" if phase else ""
            silent = "" if publish else ", not published"
            return f"apply {applied}{weighed} -> version {version}{under}{silent}"
        case Release(worker=worker, clock=clock, version=version, pull=pull, steps=steps):
            several = "" if steps is None else f" steps={steps}"
            pulls = "" if pull else ", without a pull"
            return f"release {worker} clock={clock} version={version}{several}{pulls}"
        case Hold(worker=worker, why=why):
            return f"hold {worker}: {why}"
        case Drop(push=(worker, clock), why=why):
            return f"drop {worker}@{clock}: {why}"
        case Note(kind=kind, worker=worker, values=values):
            described = " ".join(f"{key}={value}" for key, value in values.items())
            return f"note {kind} {worker}: {described}"
        case Suspend(worker=worker, why=why):
            return f"suspend {worker} {why}"
        case Restore(worker=worker):
            return f"restore {worker}"
        case SetTimer(key=key, at=at):
            return f"timer {key}: {'off' if at is None else f'{at:g} s'}"
        case Switch(to=to, why=why):
            return f"switch to {to}: {why}"
        case _:
            assert_never(decision)
