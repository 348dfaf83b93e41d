"""Processes that a test starts."""

import signal
import subprocess
from contextlib import contextmanager

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
