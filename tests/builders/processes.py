"""Processes that a test starts."""

import json
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager, suppress
from pathlib import Path

from raysync.cli.stop_signals import STOPS


@contextmanager
def default_signals():
    """Have processes that are started within stop on each signal that stops a command.

    `nohup pytest &` ignores SIGHUP, and SIGINT in a script: a child inherits what is ignored.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def started(command, **options):
    """A process whose output is text."""
    with default_signals():
        return subprocess.Popen(command, text=True, **options)


def say(kind, value):
    print(kind, json.dumps(value), flush=True)


def said_by(module, *arguments, timeout_s=160):
    """Kind -> what a module of the tests has said of that kind, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = defaultdict(list)
    for kind, _, rest in (line.partition(" ") for line in done.stdout.splitlines()):
        with suppress(json.JSONDecodeError):  # what others print there
            said[kind].append(json.loads(rest))
    return said
