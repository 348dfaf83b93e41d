"""One run as a child process, as a user would start it, that is struck by a schedule and judged."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import torch

from raysync.cluster.clock import now_s, sleep_s
from raysync.core.events import Left
from raysync.core.journal import Entry, Resumed
from raysync.paradigms import rebuild
from raysync.record.checkpoints import CHECKPOINTS, MANIFEST
from raysync.record.reader import RunRecord, load
from tests.chaos import processes
from tests.chaos.nodes import Nodes
from tests.chaos.oracles import Verdicts, judge_journal
from tests.chaos.schedule import Strike

LOG = "log.txt"
"""The file for what the commands print."""
POLL_S = 0.2
TRIES = 3
"""How often in a row a command is restarted that ended by itself without having finished."""
TOLERANCE = 0.1
"""The share by which the final metric may differ where models cannot be bit-equal."""
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Trial:
    """A run that is struck, and then what became of it."""

    def __init__(
        self,
        file: Path,
        settings: Sequence[str],  # overrides of the experiment file, as `--set` has them
        strikes: Iterable[Strike],
        folder: Path,
        notify: Callable[[str], None],
        nodes: Nodes | None = None,
    ) -> None:
        address = nodes.address if nodes else "local"
        settings = [*settings, f"output={folder.absolute()}", f"cluster.address={address}"]
        self._file = file
        self._overrides = [word for each in settings for word in ("--set", each)]
        self._folder, self._notify, self._nodes = folder, notify, nodes
        self._mark, self._tries = uuid4().hex, 0
        self.pending = list(strikes)
        self.status, self.wall_s = 0, 0.0
        self.struck: list[Strike] = []
        # target -> strikes that found no such process, and those after which the command ended by
        # itself; kind of actor -> how many were lost with nodes
        self.spared, self.fatal, self.held = Counter[str](), Counter[str](), Counter[str]()
        self.left: list[str] = []

    @property
    def path(self) -> Path | None:
        """The folder of the record; None: there is none yet."""
        return next((file.parent for file in self._folder.glob("*/*/journal.jsonl")), None)

    @property
    def record(self) -> RunRecord:
        """The record.

        Raises:
            ConfigError: there is none.
        """
        return load(self.path or self._folder, trust=True)

    def run(self) -> Trial:
        """Run to the end; no process of the run is left, even if this is interrupted."""
        began = now_s()
        self._folder.mkdir(parents=True)
        try:
            self._start()
            self._wait(self._has_checkpoint)
            struck_at = now_s()
            while self._goes_on():
                is_due = self.pending and now_s() >= struck_at + self.pending[0].after_s
                if is_due and not self.record.ended:
                    self._strike(self.pending.pop(0))
                    struck_at = now_s()
                self._pass_time()
            self.wall_s = now_s() - began
            self.left = processes.left_behind(self._mark)
        finally:
            processes.kill_all(self._mark)
        return self

    def _start(self) -> None:
        """Start the command: the run, or its resumption."""
        path = self.path
        what = [str(self._file)] if path is None else ["--resume", str(path)]
        with (self._folder / LOG).open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "raysync", "run", *what, *self._overrides],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=processes.with_mark(self._mark),
            )

    def _goes_on(self) -> bool:
        """Whether the run is not over; a command that ended by itself is restarted."""
        status = self._child.poll()
        if status is None:
            return True
        self.status = status
        is_lost = status and self.struck and self._has_checkpoint() and not self.record.ended
        if not is_lost or self._tries >= TRIES:
            return False
        self._tries += 1
        self.fatal[self.struck[-1].target] += 1
        self._notify(f"The command ended with status {status}: it is resumed.")
        self._resume()
        return True

    def _strike(self, strike: Strike) -> None:
        match strike.target:
            case "driver":
                processes.kill_all(self._mark)
                self._resume()
                told = "all processes are killed, and the run is resumed"
            case "node":
                assert self._nodes is not None, "a cluster whose nodes cannot be struck"
                candidates = self._nodes.present
                if not candidates:
                    return self._spare(strike)
                held = self._nodes.lose(strike.one_of(candidates), now_s())
                self.held.update(held)
                told = f"it is lost with {', '.join(held) or 'no actor'}"
            case target:
                found = processes.victims(self._mark, target)
                try:
                    strike.one_of(found).send_signal(SIGNALS[strike.signal])
                except (IndexError, psutil.NoSuchProcess):
                    return self._spare(strike)
                told = f"SIG{strike.signal.upper()}"
        self._tries = 0
        self.struck.append(strike)
        self._notify(f"{strike.target}: {told}.")
        return None

    def _spare(self, strike: Strike) -> None:
        self.spared[strike.target] += 1
        self._notify(f"{strike.target}: spared, since there is none now.")

    def _resume(self) -> None:
        """Start the command that goes on with the run, and wait until it does."""
        self._child.wait()
        journal = self.record.path / "journal.jsonl"
        before = journal.stat().st_mtime_ns
        self._start()
        self._wait(lambda: journal.stat().st_mtime_ns != before)

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        """Wait until something is so, or the command is over."""
        while self._child.poll() is None and not is_ready():
            self._pass_time()

    def _pass_time(self) -> None:
        if self._nodes is not None:
            self._nodes.restart(now_s())
        sleep_s(POLL_S)

    def _has_checkpoint(self) -> bool:
        with suppress(OSError):  # there is none, or it is being made
            folders = (self.path or self._folder) / CHECKPOINTS
            return any((folder / MANIFEST).is_file() for folder in folders.iterdir())
        return False


# ---- what came out ----


def judge(struck: Trial, undisturbed: Trial) -> Verdicts:
    """Ask all oracles about a run.

    Raises:
        ConfigError: one of the two has left no record.
    """
    record = struck.record
    with (record.path / "journal.jsonl").open(encoding="utf-8") as file:
        journal = judge_journal(file, partial(rebuild, trust=True))
    status = record.summary["status"]
    return {
        "status finished": "" if status == "finished" else f"it is {status}",
        **journal,
        "the model is that of the run without faults": judge_model(record, undisturbed.record),
        "no process left": ", ".join(struck.left),
    }


def judge_model(record: RunRecord, undisturbed: RunRecord) -> str:
    """Compare trained models: bit by bit under BSP on CPUs if no worker was lost, which changes who
    pushes; else by the final metric. Return a difference; empty: there is none.
    """
    entries = [line for line in record.journal() if isinstance(line, Entry)]
    loses_workers = any(isinstance(each.event, Left) and not each.report.done for each in entries)
    has_gpu = any(group.gpus for group in record.config.workers)
    if record.config.paradigm.name == "bsp" and not loses_workers and not has_gpu:
        ours, theirs = record.state_dict(), undisturbed.state_dict()
        differ = [name for name in theirs if not torch.equal(ours[name], theirs[name])]
        return f"other bits in {', '.join(differ)}" if differ else ""
    metric = record.summary["metric"]
    reached, expected = (float(run.evaluations[metric].iloc[-1]) for run in (record, undisturbed))
    is_near = abs(reached - expected) <= TOLERANCE * abs(expected)
    return "" if is_near else f"{metric} {reached:.4g}, not {expected:.4g}"


def figures(struck: Trial, undisturbed: Trial) -> dict[str, Any]:
    """Return what the faults have cost, by the names of the columns of a result."""
    resumed = [line for line in struck.record.journal() if isinstance(line, Resumed)]
    faults = len(struck.struck)
    return {
        "faults": faults,
        "survived": faults - struck.fatal.total(),
        "wall_s": round(struck.wall_s, 1),
        "undisturbed_wall_s": round(undisturbed.wall_s, 1),
        "lost_s_per_fault": round((struck.wall_s - undisturbed.wall_s) / max(1, faults), 2),
        "resumed": len(resumed),
        "resumed_away_s": round(sum(line.away_s for line in resumed), 1),
        "resumed_lost_s": round(sum(line.lost_s for line in resumed), 1),
        **{
            f"{name}samples_per_s": round(run.record.summary["samples"] / run.wall_s, 1)
            for name, run in (("", struck), ("undisturbed_", undisturbed))
        },
    }


def counts(struck: Trial) -> list[dict[str, Any]]:
    """Return a row for each kind of process: how often it was struck, and survived."""
    faults = Counter(strike.target for strike in struck.struck)
    return [
        {
            "target": target,
            "faults": faults[target],
            "survived": faults[target] - struck.fatal[target],
            "spared": struck.spared[target],
        }
        for target in sorted(faults | struck.spared)
    ]
