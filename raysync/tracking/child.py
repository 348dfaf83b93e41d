"""The program that calls a tracking library in its own process."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from raysync.tracking.library import LibraryRun
from raysync.tracking.logged import LoggedRows

# the ending of a run whose process was killed before it sent one
KILLED = {"status": "killed", "samples": 0, "summary": {}, "files": [], "models": []}


def main() -> None:
    """Serve the library, `package.module:Class`, that the first argument names."""
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # drop what the library prints

    def answer(kind: str, text: str) -> None:
        with suppress(OSError):  # of a run that was killed: what it has sent is logged all the same
            answers.write(json.dumps({kind: text}) + "\n")
            answers.flush()

    try:
        module, _, name = sys.argv[1].partition(":")
        _serve(getattr(import_module(module), name), answer)
    except BaseException as error:
        lines = str(error).strip().splitlines()
        answer("error", f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)
        os._exit(0)  # without the library's exit handlers, which may wait for what has failed


def _serve(library: type[LibraryRun], answer: Any) -> None:
    run: LibraryRun | None = None
    has_ended = False
    for line in sys.stdin:
        message = json.loads(line)
        if "begin" in message:
            begin, arguments = message["begin"], message["arguments"]
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
        elif run is not None and "log" in message:
            row = message["log"]
            if not logged.has(row["samples"], row["metrics"]):
                run.log(**row)
                logged.add(row["samples"], row["metrics"])
            answer("begun", "")
        elif run is not None and "end" in message:
            run.end(message["end"])
            has_ended = True
    if run is not None and not has_ended:
        run.end(KILLED)
