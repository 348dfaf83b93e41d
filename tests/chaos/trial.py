"""One run as a child process, as a user would start it, that is struck by a schedule and judged."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from raysync.cluster.clock import now_s, sleep_s
from raysync.config import Experiment
from raysync.core.events import Joined, Left, Pushed
from raysync.core.journal import Entry, Resumed
from raysync.errors import ConfigError
from raysync.paradigms import rebuild
from raysync.record.checkpoints import CHECKPOINTS, MANIFEST
from raysync.record.reader import RunRecord, load
from raysync.record.storage import is_uri
from tests.chaos import processes
from tests.chaos.full_store import FULL_S, FullStores
from tests.chaos.memory import MemorySamples
from tests.chaos.nodes import Nodes
from tests.chaos.oracles import Verdict, judge_journal, updates_in
from tests.chaos.schedule import Strike

LOG = "log.txt"
"""The file for what the commands print."""
MESSAGE_BYTES = 16384
"""The room that a full disk leaves for what the command prints."""
DISK_ERROR = "its record cannot be written"
STORE_ERROR = re.compile(r"object store of Ray\s+is\s+full\s+\([0-9]+")
POLL_S = 0.2
TRIES = 3
"""How often in a row a command is restarted that ended by itself without having finished."""
Notify = Callable[[str], None]


@dataclass
class Outcome:
    """What became of a run."""

    folder: Path
    """The folder of its output."""
    status: int = 0
    """The exit status of its last command."""
    wall_s: float = 0.0
    """Seconds from the start of the first command to the end of the last."""
    struck: list[Strike] = field(default_factory=list)
    spared: Counter[str] = field(default_factory=Counter)
    """Target -> the strikes that found no process of that kind."""
    fatal: Counter[str] = field(default_factory=Counter)
    """Target -> the strikes after which the command ended by itself, as a struck driver is meant to
    do."""
    pending: int = 0
    """The strikes that did not come: the run was over before."""
    processes: list[str] = field(default_factory=list)
    """The processes that were left."""
    segments: list[str] = field(default_factory=list)
    """The shared memory that was left."""
    unclear: list[str] = field(default_factory=list)
    """What the commands printed that ended on a full disk, or on a full object store, without a
    clear error."""
    held: Counter[str] = field(default_factory=Counter)
    """Kind of actor -> how many of them were lost with a node."""
    groups: list[str] = field(default_factory=list)
    """The placement groups that were left on a cluster that was there before."""
    memory: MemorySamples = field(default_factory=MemorySamples)
    """The memory of its processes while it went on."""

    @property
    def record(self) -> RunRecord:
        """The record of the run.

        Raises:
            ConfigError: it has none.
        """
        return load(record_in(self.folder) or self.folder, trust=True)


def record_in(folder: Path) -> Path | None:
    """Return the folder of the only record below a folder, or of the first; None: there is none."""
    return next((file.parent for file in sorted(folder.rglob("journal.jsonl"))), None)


class Trial:
    """A run that is struck."""

    def __init__(
        self,
        file: Path,
        settings: Sequence[str],
        strikes: Iterable[Strike],
        folder: Path,
        environment: Mapping[str, str],
        address: str | None,
        notify: Notify,
        nodes: Nodes | None = None,
    ) -> None:
        """
        Args:
            file: the experiment file.
            settings: overrides of it, as `--set` has them.
            strikes: in their order; none: the run is left alone.
            folder: for the record, and the log of the commands.
            environment: of the commands.
            address: the cluster that they join; None: a private one.
            notify: is told, in a sentence, of each strike.
            nodes: the nodes of that cluster, where they can be struck.
        """
        self._file, self._settings, self._folder = file, settings, folder
        self._strikes, self._notify = list(strikes), notify
        self._mark = uuid4().hex
        self._environment = processes.with_mark(environment, self._mark)
        self._child: subprocess.Popen[bytes] | None = None
        self._before = processes.segments()
        self._address, self._nodes = address, nodes
        self._due_at = 0.0
        self._printed_bytes = 0
        """The size of the log at the latest strike."""
        self._tries = 0
        self.outcome = Outcome(folder)

    def run(self) -> Outcome:
        """Run to the end; no process of the run is left, even if this is interrupted."""
        outcome, began = self.outcome, now_s()
        self._folder.mkdir(parents=True, exist_ok=True)
        groups = processes.placement_groups(self._address)
        try:
            self._start()
            self._wait(self._has_begun)
            self._due_at = now_s()
            while self._goes_on():
                if self._is_due() and not self._is_over():
                    self._strike(self._strikes.pop(0))
                    self._due_at = now_s()
                outcome.memory.take(self._mark, now_s())
                self._pass_time()
            outcome.wall_s = now_s() - began
            outcome.pending = len(self._strikes)
            outcome.processes = processes.left_behind(self._mark)
        finally:
            processes.kill_all(self._mark)
        outcome.groups = sorted(processes.placement_groups(self._address) - groups)
        outcome.segments = processes.orphans_among(processes.segments() - self._before)
        return outcome

    def _start(self) -> None:
        """Start the command: the run, or its resumption."""
        record = record_in(self._folder)
        what = (
            [str(self._file), *self._overrides()]
            if record is None
            else ["--resume", str(record), *self._overrides()]
        )
        with (self._folder / LOG).open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "raysync", "run", *what],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def _overrides(self) -> list[str]:
        settings = [*self._settings, f"output={self._folder.absolute()}"]
        if self._nodes is not None:
            settings.append(f"cluster.address={self._address}")
        return [word for each in settings for word in ("--set", each)]

    def _goes_on(self) -> bool:
        """Whether the run is not over; a command that ended by itself is restarted."""
        assert self._child is not None, "a run without a command"
        status = self._child.poll()
        if status is None:
            return True
        self.outcome.status = status
        is_lost = status and self.outcome.struck and self._has_begun() and not self._is_over()
        if not is_lost or self._tries >= TRIES:
            return False
        if self.outcome.struck[-1].target == "store":
            self._hear(lambda printed: STORE_ERROR.search(printed) is not None)
        self._tries += 1
        self.outcome.fatal[self.outcome.struck[-1].target] += 1
        self._notify(f"The command ended with status {status}: it is resumed.")
        self._resume()
        return True

    def _strike(self, strike: Strike) -> None:
        """Strike a process of that kind, if there is one."""
        outcome, how = self.outcome, f"{strike.target}: SIG{strike.signal.upper()}"
        self._printed_bytes = (self._folder / LOG).stat().st_size
        if strike.target == "driver":
            self._notify(f"{how}, and the run is resumed.")
            outcome.struck.append(strike)
            processes.kill_all(self._mark)
            self._resume()
            return
        if strike.target == "disk":
            self._fill_disk(strike)
            return
        if strike.target == "node":
            self._lose_node(strike)
            return
        if strike.target == "store":
            self._fill_stores(strike)
            return
        candidates = processes.victims(self._mark, strike.target)
        if not candidates or not processes.strike(strike.one_of(candidates), strike.signal):
            self._notify(f"{strike.target}: spared, since there is none now.")
            outcome.spared[strike.target] += 1
            return
        self._tries = 0
        outcome.struck.append(strike)
        self._notify(f"{how} (process {strike.one_of(candidates).pid}).")

    def _lose_node(self, strike: Strike) -> None:
        """Kill all processes of a node, which comes back some seconds later."""
        assert self._nodes is not None, "a cluster whose nodes cannot be struck"
        if not self._nodes.present:
            self._notify("node: spared, since all are away.")
            self.outcome.spared["node"] += 1
            return
        held = self._nodes.lose(strike.one_of(self._nodes.present), now_s())
        self._tries = 0
        self.outcome.struck.append(strike)
        self.outcome.held.update(held)
        self._notify(f"node: SIGKILL, with {', '.join(held) or 'no actor'}.")

    def _fill_disk(self, strike: Strike) -> None:
        """Let the command find a full disk, wait for its end, and resume it with room."""
        assert self._child is not None, "a run without a command"
        record = record_in(self._folder)
        assert record is not None, "a run without a record"
        journal_bytes = (record / "journal.jsonl").stat().st_size
        full_bytes = max(journal_bytes, self._printed_bytes + MESSAGE_BYTES)
        if not processes.fill_disk(self._child.pid, full_bytes):
            self.outcome.spared["disk"] += 1
            return
        self._tries = 0
        self.outcome.struck.append(strike)
        self._notify(f"disk: no file grows beyond {full_bytes} bytes.")
        self._wait(lambda: False)
        self._hear(lambda printed: DISK_ERROR in printed)
        if self._has_begun() and not self._is_over():
            self._resume()

    def _fill_stores(self, strike: Strike) -> None:
        """Let the run find full object stores for some seconds."""
        assert self._nodes is not None, "a cluster whose stores cannot be filled"
        with FullStores(self._nodes.address, self._nodes.ids) as stores:
            self._tries = 0
            self.outcome.struck.append(strike)
            self._notify(f"store: {stores.filled_bytes / 1e6:.0f} MB are filled.")
            end_s = now_s() + FULL_S
            self._wait(lambda: now_s() >= end_s)

    def _hear(self, is_clear: Callable[[str], bool]) -> None:
        """Judge what the command has printed since the latest strike, before it ended."""
        log = (self._folder / LOG).read_bytes()[self._printed_bytes :]
        printed = log.decode(errors="replace")
        if not is_clear(printed) or "Traceback" in printed:
            self.outcome.unclear.append(printed[-200:].strip() or "it said nothing")

    def _resume(self) -> None:
        """Start the command that goes on with the run, and wait until it does."""
        assert self._child is not None, "a run without a command"
        self._child.wait()
        record = record_in(self._folder)
        assert record is not None, "a run without a record"
        journal = record / "journal.jsonl"
        before = journal.stat().st_mtime_ns
        self._start()
        self._wait(lambda: journal.stat().st_mtime_ns != before)

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        """Wait until something is so, or the command is over."""
        assert self._child is not None, "a run without a command"
        while self._child.poll() is None and not is_ready():
            self._pass_time()

    def _pass_time(self) -> None:
        if self._nodes is not None and (count := self._nodes.tend(now_s())):
            self._notify(f"node: {count} back.")
        sleep_s(POLL_S)

    def _is_due(self) -> bool:
        return bool(self._strikes) and now_s() >= self._due_at + self._strikes[0].after_s

    def _is_over(self) -> bool:
        """Whether the run has ended, and its command only takes its processes down."""
        record = record_in(self._folder)
        return record is not None and load(record).ended

    def _has_begun(self) -> bool:
        """Whether the run has a checkpoint to go on from."""
        record = record_in(self._folder)
        if record is None:
            return False
        return bool(folders_with(record / CHECKPOINTS, MANIFEST))


def folders_with(parent: Path, name: str) -> list[Path]:
    """List the subfolders with a file of that name, which may come and go meanwhile."""
    try:
        folders = sorted(parent.iterdir())
    except FileNotFoundError:
        return []
    return [folder for folder in folders if (folder / name).is_file()]


# ---- what came out ----


def judge(struck: Outcome, undisturbed: Outcome, tolerance: float) -> list[Verdict]:
    """Ask all oracles about a run.

    Args:
        struck: the run that was struck.
        undisturbed: the same run, without faults.
        tolerance: the share by which the final metric may differ where workers were lost, or where
            the paradigm's result depends on chance.

    Raises:
        ConfigError: one of them has left no record.
    """
    record = struck.record
    with (record.path / "journal.jsonl").open(encoding="utf-8") as file:
        journal = judge_journal(file, partial(rebuild, trust=True))
    status = record.summary["status"]
    return [
        Verdict("status finished", "" if status == "finished" else f"it is {status}"),
        *journal,
        _judge_model(record, undisturbed.record, tolerance),
        Verdict("a full disk or store ends in a clear error", "; ".join(struck.unclear)),
        Verdict("memory stays flat", struck.memory.growth()),
        Verdict("no process left", ", ".join(struck.processes)),
        Verdict("no shared memory left", ", ".join(struck.segments)),
        Verdict("no placement group left", ", ".join(struck.groups)),
    ]


def _judge_model(record: RunRecord, undisturbed: RunRecord, tolerance: float) -> Verdict:
    """Compare the trained model with that of the run without faults."""
    if record.config.keep == "none":
        return Verdict("model", note="keep: none")
    name = "model bit-equal with that of the run without faults"
    missing = [run for run in (record, undisturbed) if not _has_model(run)]
    if missing:
        return Verdict(name, f"{missing[0].path}: no model file")
    if why := _why_not_equal(record):
        return _judge_metric(record, undisturbed, tolerance, why)
    ours, theirs = record.state_dict(), undisturbed.state_dict()
    differ = [each for each in theirs if not torch.equal(ours[each], theirs[each])]
    return Verdict(name, f"differs in {', '.join(differ[:3])}" if differ else "")


def _why_not_equal(record: RunRecord) -> str:
    """Say why the model of a run that was struck need not be that of the run without faults, bit by
    bit; empty: it must be.
    """
    if record.config.paradigm.name != "bsp":
        return "the order of the pushes decides about the model"
    if workers_lost(record):
        return "workers were lost, which changes who pushes"
    if any(group.gpus for group in record.config.workers):
        return "kernels of a GPU may add in another order each time"
    return ""


def _judge_metric(record: RunRecord, undisturbed: RunRecord, tolerance: float, why: str) -> Verdict:
    metric = record.summary["metric"]
    reached, expected = (float(run.evaluations[metric].iloc[-1]) for run in (record, undisturbed))
    far = abs(reached - expected) > tolerance * abs(expected)
    return Verdict(
        f"final {metric} within {tolerance:.0%} of that of the run without faults",
        f"{reached:.4g}, not {expected:.4g}" if far else "",
        f"{reached:.4g} and {expected:.4g}; not bit-equal, since {why}",
    )


def _has_model(record: RunRecord) -> bool:
    return (record.path / "model.safetensors").is_file()


def workers_lost(record: RunRecord) -> int:
    """Return how many workers were lost, as the journal tells it."""
    return sum(
        isinstance(line, Entry) and isinstance(line.event, Left) and not line.report.done
        for line in record.journal()
    )


def figures(struck: Outcome, undisturbed: Outcome) -> dict[str, Any]:
    """Return what the faults have cost, by the names of the columns of a result."""
    lines = list(struck.record.journal())
    resumed = [line for line in lines if isinstance(line, Resumed)]
    joins = [
        line.report for line in lines if isinstance(line, Entry) and isinstance(line.event, Joined)
    ]
    away = [report.away_s for report in joins if report.away_s is not None]
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
        "workers_back": len(away),
        "workers_away_s": round(sum(away), 1),
        "samples_per_s": round(samples_of(struck.record) / struck.wall_s, 1),
        "undisturbed_samples_per_s": round(samples_of(undisturbed.record) / undisturbed.wall_s, 1),
    }


def samples_of(record: RunRecord) -> int:
    """Return the samples whose gradients made the model; those of an update that was lost, and made
    again, count once.
    """
    pushed = {
        (line.event.worker, line.event.clock): line.event.samples
        for line in record.journal()
        if isinstance(line, Entry) and isinstance(line.event, Pushed)
    }
    return sum(pushed[push] for pushes in updates_in(record.journal()) for push in pushes)


def check(experiment: Experiment) -> None:
    """Refuse experiments whose run cannot survive.

    Raises:
        ConfigError: the message says what is missing.
    """
    if experiment.engine != "ray":
        raise ConfigError(
            f"chaos: engine: {experiment.engine}: no process of it can be struck; use engine: ray."
        )
    if experiment.checkpoint is None:
        raise ConfigError(
            "chaos: the experiment takes no checkpoints, so its run can be lost; add --set"
            " checkpoint.every_s=5."
        )
    if is_uri(experiment.checkpoint.output or ""):
        raise ConfigError("chaos: checkpoint.output: a folder of this machine is expected.")
