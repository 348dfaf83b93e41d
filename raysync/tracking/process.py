"""A tracking library in its own process, so that it can neither delay nor break the run.

A network that hangs, threads, signal handlers, global settings and the environment concern that
process alone, and concurrent runs do not interfere. Messages are lines of JSON:

    to the library      {"begin": {...}}, {"log": {...}}, ..., {"end": {...}}
    from the library    {"notice": text} or {"error": text}

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
from threading import Thread
from typing import Any

import psutil

import raysync
from raysync.errors import RaysyncError
from raysync.tracking.rows import Beginning, Ending, Row

END_LIMIT_S = 300.0
"""The time limit for the library to send the rest after the end of a run."""
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

    def begin(self, run: Beginning) -> None:
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
            TrackerFailed: it failed, or took longer than `END_LIMIT_S`.
        """
        assert self._process is not None, "an end before the beginning"
        self._send({"end": asdict(run)})
        self._unsent.put("")  # ends `_write_messages`
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise TrackerFailed(f"it has not ended after {END_LIMIT_S:g} s") from None
        for thread in self._threads:
            thread.join()
        self._handle_answers()
        if self._process.returncode:
            raise TrackerFailed(f"its process exited with {self._process.returncode}")

    def close(self) -> None:
        """Kill the process and its children."""
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
                answer = self._answers.get_nowait()
                if "error" in answer:
                    raise TrackerFailed(answer["error"])
                self._notify(answer["notice"])

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
                self._answers.put(json.loads(line))
        if code := process.wait():
            self._answers.put({"error": f"its process exited with {code}"})
