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
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread, Timer
from typing import Any

import psutil

import raysync
from raysync.errors import RaysyncError
from raysync.tracking.rows import Beginning, Ending, Row

# How long a library may be silent before the end of a run waits for it no more: until it is
# imported; then until it has begun, for which wandb tries 90 s to reach its server, and MLflow
# minutes; and when the run has ended, while it sends the rest.
IMPORT_LIMIT_S, BEGIN_LIMIT_S, END_LIMIT_S = 60.0, 10.0, 300.0
PROGRAM = "import sys; sys.path.append({path!r}); from raysync.tracking.child import main; main()"


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
        self._handle_answers()

    def end(self, run: Ending) -> None:
        """Wait for the library to finish.

        Raises:
            TrackerFailed: it failed, or was silent for too long.
        """
        assert self._process is not None, "an end before the beginning"
        self._send({"end": asdict(run)})
        self._unsent.put("")  # ends `_write_messages`
        self._await_exit()
        for thread in self._threads:
            thread.join()
        self._handle_answers()

    def _await_exit(self) -> None:
        while not self._has_exited:
            if self._silence:
                raise TrackerFailed(f"it has not begun, and was silent for {self._silence}")
            try:
                self._handle(self._answers.get(timeout=END_LIMIT_S))
            except Empty:
                raise TrackerFailed(f"it has not ended in {END_LIMIT_S:g} s of silence") from None

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
                    victim.send_signal(signal.SIGKILL)
        self._process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        self._handle_answers()
        self._unsent.put(json.dumps(message) + "\n")

    def _handle_answers(self) -> None:
        with suppress(Empty):
            while True:
                self._handle(self._answers.get_nowait())

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
