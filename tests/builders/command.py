"""The command line in this process."""

import sys

import pytest

from raysync import cli


def caller(monkeypatch, capsys, *command):
    """Return `call(*arguments)` of a command: its exit status, output and errors."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["raysync", *command, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code or 0, *capsys.readouterr())

    return call
