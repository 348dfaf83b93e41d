"""A tracking library in a process of its own.

So the library can neither delay a run nor break it: a network that hangs, a thread, a signal
handler or a global setting of the library stay there, and several runs at once do not meet. Its
environment, too, is its own: that is how these libraries are told where to write.

    this process -> library    {"begin": {...}}, {"log": {...}}, ..., {"end": {...}}, a line each
    library -> this process    {"notice": text} or {"error": text}

Where the lines end without an `end`, the run was killed, and the library is told that it failed.
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

END_S = 300.0
"""The seconds that a library may take, after the end of a run, to pass on what is left."""
PROGRAM = "import sys; sys.path.append({path!r}); from raysync.tracking.child import main; main()"


class TrackerFailed(RaysyncError):
    """A tracking library has failed. The run goes on without it."""


class LibraryProcess:
    """A tracking library that works elsewhere: a `Sink`."""

    def __init__(
        self, library: str, arguments: Mapping[str, Any], notify: Callable[[str], None]
    ) -> None:
        """
        Args:
            library: its class, a `LibraryRun`, as `package.module:Class`.
            arguments: those of the experiment file.
            notify: receives sentences that the user should read, such as the address of the run.
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
            start_new_session=True,  # Ctrl-C is for the run, which then says how it has ended
        )
        for work in (self._write, self._read):
            thread = Thread(target=work, args=(process,), daemon=True)
            thread.start()
            self._threads.append(thread)
        self._send({"begin": asdict(run), "arguments": self._arguments})

    def go_back(self, samples: int) -> bool:
        """See `Sink.go_back`: what a library was told stays."""
        return False

    def log(self, row: Row) -> None:
        self._send({"log": asdict(row)})

    def flush(self) -> None:
        """See `Sink.flush`: rows are on their way already."""
        self._take_answers()

    def end(self, run: Ending) -> None:
        """See `Sink.end`.

        Raises:
            TrackerFailed: the library failed, or took longer than `END_S`.
        """
        assert self._process is not None, "an end before the beginning"
        self._send({"end": asdict(run)})
        self._unsent.put("")
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise TrackerFailed(f"it has not ended after {END_S:g} s") from None
        for thread in self._threads:
            thread.join()
        self._take_answers()
        if self._process.returncode:
            raise TrackerFailed(f"its process exited with {self._process.returncode}")

    def close(self) -> None:
        """See `Sink.close`: end the process, and those that the library started."""
        if self._process is None or self._process.poll() is not None:
            return
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process.pid)
            for each in (*process.children(recursive=True), process):
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(signal.SIGKILL)
        self._process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        self._take_answers()
        self._unsent.put(json.dumps(message) + "\n")

    def _take_answers(self) -> None:
        with suppress(Empty):
            while True:
                answer = self._answers.get_nowait()
                if "error" in answer:
                    raise TrackerFailed(answer["error"])
                self._notify(answer["notice"])

    def _write(self, process: subprocess.Popen[str]) -> None:
        """Write what is to be sent: a library that hangs fills its pipe, and only this thread
        waits then.
        """
        assert process.stdin is not None, "a process without a pipe"
        # the process is gone: its answers, or its exit status, say why
        with suppress(OSError), process.stdin as pipe:
            while text := self._unsent.get():
                pipe.write(text)
                pipe.flush()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None, "a process without a pipe"
        with process.stdout as pipe:
            for line in pipe:
                self._answers.put(json.loads(line))
        if code := process.wait():
            self._answers.put({"error": f"its process exited with {code}"})
