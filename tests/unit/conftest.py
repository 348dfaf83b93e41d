"""The command line in this process, and an engine that trains nothing."""

import sys
from contextlib import contextmanager

import pytest

from raysync import cli
from raysync.running import engines, resuming, run
from tests.fakes.engines import ScriptedEngine


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["raysync", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return call


@pytest.fixture
def engine(monkeypatch):
    """The engine that `raysync.run` and `raysync.resume` get."""
    scripted = ScriptedEngine()

    @contextmanager
    def engine_for(*_):
        yield scripted

    for module in (engines, run, resuming):
        monkeypatch.setattr(module, "engine_for", engine_for)
    return scripted
