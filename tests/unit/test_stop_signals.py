"""How a command is stopped, in small processes; tests/cluster/test_commands.py has whole
commands.
"""

import signal
import subprocess
import sys
from contextlib import suppress
from threading import Event

import psutil
import pytest

from tests.builders import processes
from tests.builders.messages import tells

PATIENT = """
import signal, sys
from raysync.cli.stop_signals import stoppable

with stoppable():
    try:
        print("ready", flush=True)
        while True:
            signal.pause()
    finally:
        signal.raise_signal(signal.SIGTERM)  # as `timeout` does
        print("completed", flush=True)
        sys.exit(1)  # which is what Ray makes of it
"""
STUCK = """
import contextlib, ctypes, subprocess
from raysync.cli.stop_signals import stoppable

with stoppable():
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    with contextlib.suppress(SystemExit):  # of a signal that comes before the process is deaf
        print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
        libc.pthread_mutex_lock(mutex)  # for ever, and deaf to signals, as Ray's calls are
    libc.pthread_mutex_lock(mutex)
"""


def started(*command):
    """The process, and the first line that it prints."""
    process = processes.started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize(("number", "command"), [(signal.SIGHUP, ()), (signal.SIGTERM, ("nohup",))])
def test_a_signal_ends_a_command_once_and_in_good_order(number, command):
    process, _ = started(*command, sys.executable, "-c", PATIENT)
    if command:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert out == "completed\n"


def test_a_second_ctrl_c_ends_what_is_deaf_and_its_children():
    process, pid = started(sys.executable, "-c", STUCK)
    child = psutil.Process(int(pid))
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert tells(err.strip(), "Ended records")
    with suppress(psutil.NoSuchProcess):
        # It is killed, but dies when it is next scheduled.
        while child.status() != psutil.STATUS_ZOMBIE:
            Event().wait(0.01)
