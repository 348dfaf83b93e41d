"""A tracking library in its own process, so that it can neither delay nor break the run.

A network that hangs, threads, signal handlers, global settings and the environment concern that
process alone, and concurrent runs do not interfere. Messages are lines of JSON:

    to the library      {"begin": {...}}, {"log": {...}}, ..., {"end": {...}}
    from the library    {"imported": ""}, {"begun": ""} also with each row, {"notice": text} or
                        {"error": text}

If the lines end without an `end`, the run was killed, and the library marks it as failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread, Timer
from typing import Any

import psutil

import raysync
from raysync.errors import RaysyncError
from raysync.paradigms.class_loading import load_reference
from raysync.record.storage import completed
from raysync.tracking.tracker import EVALUATION, Beginning, Ending, Row

# The arguments of every library: whether to log the record's files as an artifact (default: yes),
# and the trained models (default: no).
COMMON_ARGUMENTS = ("log_record", "log_model")
FAILED = ("failed", "diverged", "killed")  # statuses of runs that libraries mark as failed


class LibraryRun(ABC):
    """A run of the library, which a resumed run of ours continues."""

    packages: tuple[str, ...]  # imported before the run is created
    id: str  # what the library calls the run
    notice = ""  # for the user, such as the URL of the run

    def __init__(self, run: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """
        Args:
            run: the fields of a `Beginning`, and `logged_as`: the id of an earlier process's run.
            arguments: from the experiment file.
        """
        self._log_record = arguments.get("log_record", True)
        self._log_model = arguments.get("log_model", False)

    @classmethod
    @abstractmethod
    def argument_names(cls) -> tuple[str, ...]:
        """Return the names of the arguments that the installed library takes."""

    @classmethod
    def environment(cls, run: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
        return {}  # variables to set before the library is imported

    @abstractmethod
    def log(self, samples: int, seconds: float, metrics: Mapping[str, float]) -> None: ...

    @abstractmethod
    def end(self, run: Mapping[str, Any]) -> None:
        """Log the fields of an `Ending`, and wait until all is sent."""

    def files(self, run: Mapping[str, Any]) -> list[str]:
        """List the files for the record's artifact."""
        models = run["models"] if self._log_model else []
        return [*(run["files"] if self._log_record else []), *models]


# ---- in the process of the run ----

# The end of a run waits for a library that is silent for at most this long: before it is imported;
# then before it has begun (wandb tries 90 s to reach its server, MLflow minutes); while it sends
# the rest.
IMPORT_LIMIT_S, BEGIN_LIMIT_S, END_LIMIT_S = 60.0, 10.0, 300.0
PROGRAM = (
    "import sys; sys.path.append({path!r}); from raysync.tracking.library import serve; serve()"
)


class TrackerFailed(RaysyncError):
    """A failed tracking library, without which the run goes on."""


class LibraryProcess:
    """A `Sink` that sends everything to a library's process."""

    def __init__(
        self, library: str, arguments: Mapping[str, Any], notify: Callable[[str], None]
    ) -> None:
        """
        Args:
            library: its class, a `LibraryRun`, as `package.module:Class`.
            arguments: from the experiment file.
        """
        self._library, self._arguments, self._notify = library, dict(arguments), notify
        self._process: subprocess.Popen[str] | None = None
        self._threads: list[Thread] = []
        self._unsent: SimpleQueue[str] = SimpleQueue()
        self._answers: SimpleQueue[dict[str, str]] = SimpleQueue()
        self._timer = Timer(0.0, lambda: None)
        self._silence = ""  # how long the library has been silent, if it has not begun in time
        self._has_exited = False

    def begin(self, run: Beginning) -> None:
        self._expect(IMPORT_LIMIT_S)
        path = str(Path(raysync.__file__).parents[1])
        process = self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(path=path), self._library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the run, which then reports its end
        )
        for work in (self._write_messages, self._read_answers):
            thread = Thread(target=work, args=(process,), daemon=True)
            thread.start()
            self._threads.append(thread)
        self._send({"begin": asdict(run), "arguments": self._arguments})

    def rewind(self, samples: int) -> bool:
        return False  # a library cannot forget rows

    def log(self, row: Row) -> None:
        self._send({"log": asdict(row)})

    def flush(self) -> None:
        """Handle the answers so far; raise `TrackerFailed` if the library has failed."""
        with suppress(Empty):
            while True:
                self._handle(self._answers.get_nowait())

    def end(self, run: Ending) -> None:
        """Wait for the library to finish.

        Raises:
            TrackerFailed: it failed, or was silent for too long.
        """
        assert self._process is not None, "an end before the beginning"
        self._send({"end": asdict(run)})
        self._unsent.put("")  # ends `_write_messages`
        while not self._has_exited:
            if self._silence:
                raise TrackerFailed(f"it has not begun, and was silent for {self._silence}")
            try:
                self._handle(self._answers.get(timeout=END_LIMIT_S))
            except Empty:
                raise TrackerFailed(f"it has not ended in {END_LIMIT_S:g} s of silence") from None
        for thread in self._threads:
            thread.join()

    def _expect(self, limit_s: float) -> None:
        """Note a silence of that length, unless an answer comes."""
        self._timer.cancel()
        self._timer = Timer(limit_s, self._answers.put, [{"silence": f"{limit_s:g} s"}])
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        """Kill the process and its children."""
        self._timer.cancel()
        if self._process is None or self._process.poll() is not None:
            return
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process.pid)
            for victim in (*process.children(recursive=True), process):
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
        self._process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        self.flush()
        self._unsent.put(json.dumps(message) + "\n")

    def _handle(self, answer: Mapping[str, str]) -> None:
        [(kind, text)] = answer.items()
        if kind == "error":
            raise TrackerFailed(text)
        if kind == "notice":
            self._notify(text)
        elif kind == "exited":
            self._has_exited = True
        self._silence = text if kind == "silence" else ""

    def _write_messages(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None, "a process without a pipe"
        # A library that hangs fills its pipe, and then only this thread waits. If the process is
        # gone, its answers or its exit status say why.
        with suppress(OSError), process.stdin as pipe:
            while text := self._unsent.get():
                pipe.write(text)
                pipe.flush()

    def _read_answers(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None, "a process without a pipe"
        with process.stdout as pipe:
            for line in pipe:
                answer = json.loads(line)
                if "imported" in answer:
                    self._expect(BEGIN_LIMIT_S)
                else:
                    self._timer.cancel()
                self._answers.put(answer)
        if code := process.wait():
            self._answers.put({"error": f"its process exited with {code}"})
        self._answers.put({"exited": ""})


# ---- in the process of the library ----

# the ending of a run whose process was killed before it sent one
KILLED = {"status": "killed", "samples": 0, "summary": {}, "files": [], "models": []}


def serve() -> None:
    """Call the library, `package.module:Class`, that the first argument names."""
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # drop what the library prints

    def answer(kind: str, text: str) -> None:
        # if the run was killed, nobody reads this, and its messages so far are still logged
        with suppress(OSError):
            answers.write(json.dumps({kind: text}) + "\n")
            answers.flush()

    try:
        _call(load_reference(sys.argv[1], "track"), answer)
    except BaseException as error:
        lines = str(error).strip().splitlines()
        answer("error", f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)
        os._exit(0)  # without the library's exit handlers, which may wait for ever


def _call(library: type[LibraryRun], answer: Callable[[str, str], None]) -> None:
    first = json.loads(sys.stdin.readline())
    begin, arguments = first["begin"], first["arguments"]
    for name, value in library.environment(begin, arguments).items():
        # the libraries read output folders from the environment; the user's settings win
        if name not in os.environ or "dir" in arguments:
            os.environ[name] = value
    for package in library.packages:
        import_module(package)
    answer("imported", "")
    logged = LoggedRows(Path(begin["folder"], f"{library.packages[0]}.json"))
    run = library(begin | {"logged_as": logged.run_id}, arguments)
    logged.begin(run.id)
    answer("begun", "")
    if run.notice:
        answer("notice", run.notice)
    for message in map(json.loads, sys.stdin):
        if "end" in message:
            run.end(message["end"])
            return
        row = message["log"]
        if not logged.has(row["samples"], row["metrics"]):
            run.log(**row)
            logged.add(row["samples"], row["metrics"])
        answer("begun", "")
    run.end(KILLED)


class LoggedRows:
    """Knows which rows an earlier process has logged to the same run of a library."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.run_id = ""  # of the library's run; empty: none has begun
        self._until: dict[str, int] = {}  # kind of row -> its last step
        with suppress(OSError, ValueError):
            state = json.loads(file.read_text(encoding="utf-8"))
            self.run_id, self._until = state["run"], state["samples"]
        self._earlier = dict(self._until)

    def begin(self, run_id: str) -> None:
        """Forget the rows unless they are of this run."""
        if run_id != self.run_id:
            self.run_id, self._until, self._earlier = run_id, {}, {}
            self._save()

    def has(self, samples: int, metrics: Mapping[str, Any]) -> bool:
        """Whether an earlier process has logged the row, or a later one of its kind."""
        return samples <= self._earlier.get(_kind(metrics), -1)

    def add(self, samples: int, metrics: Mapping[str, Any]) -> None:
        self._until[_kind(metrics)] = samples
        self._save()

    def _save(self) -> None:
        text = json.dumps({"run": self.run_id, "samples": self._until})
        # without it, another process may log rows twice
        with suppress(OSError), completed(self._file) as new:
            new.write_text(text, encoding="utf-8")


def _kind(metrics: Mapping[str, Any]) -> str:
    """Return the kind of a row; kinds differ in order: evaluations are logged late."""
    return "evaluations" if any(name.startswith(EVALUATION) for name in metrics) else "measures"
