"""Callbacks of Python: what they see, when they are refused, and what happens if one fails."""

from pathlib import Path

import pytest

import raysync
from raysync.errors import ConfigError, RunFailed
from raysync.tracking.callback import METHODS, check_callbacks
from tests.builders.messages import naming
from tests.builders.reports import BASE


class Seen(raysync.Callback):
    """Notes what it is told; made by an experiment file, too."""

    made = []

    def __init__(self, word=""):
        self.word, self.calls = word, []
        self.made.append(self)

    def on_start(self, run):
        self.calls.append(("start", run))

    def on_evaluation(self, evaluation, measures):
        self.calls.append(("evaluation", evaluation))
        assert evaluation in measures.evaluations

    def on_progress(self, measures):
        self.calls.append(("progress", measures.ended is not None))

    def on_end(self, record):
        self.calls.append(("end", record))

    def of(self, kind):
        return [what for each, what in self.calls if each == kind]


class OnlyEnd:
    """Not derived from anything."""

    def on_end(self, record):
        self.status = record.summary["status"]


class Breaks(raysync.Callback):
    def __init__(self, method):
        setattr(self, method, self._break)

    def _break(self, *_):
        raise ValueError("no more\nof this")


@pytest.fixture
def settings(tmp_path, one_thread):
    return BASE | {"output": str(tmp_path)}


def status(folder):
    return raysync.load(folder).summary["status"]


def test_a_callback_sees_the_evaluations_of_the_record_in_their_order(settings):
    seen, only_end = Seen(), OnlyEnd()
    record = raysync.run(settings, callbacks=[seen, only_end])
    columns = ["mark", "progress", "version", "at"]
    evaluations = [
        {**{name: getattr(each, name) for name in columns}, **each.metrics}
        for each in seen.of("evaluation")
    ]
    assert evaluations == record.evaluations.to_dict("records")
    kinds = [kind for kind, _ in seen.calls]
    assert kinds[0] == "start"
    assert kinds[-2:] == ["progress", "end"]
    assert seen.of("progress").count(True) == 1
    [start], [end] = seen.of("start"), seen.of("end")
    assert (start.folder, start.group, start.name) == (record.path, "tiny", record.path.name)
    assert start.experiment.paradigm.name == "bsp"
    assert end.summary == record.summary
    assert only_end.status == "finished"


def test_callbacks_of_a_file_are_created_for_each_run(settings):
    named = {"name": f"{__name__}:Seen", "word": "file"}
    Seen.made.clear()
    for _ in range(2):
        record = raysync.run(settings | {"callbacks": named})
    first, second = Seen.made
    assert first.word == second.word == "file"
    assert len(first.of("evaluation")) == len(second.of("evaluation")) == len(record.evaluations)
    assert raysync.load(record.path).config.callbacks, "a record that is read imports nothing"
    assert len(Seen.made) == 2


@pytest.mark.parametrize("method", METHODS)
def test_one_that_fails_ends_the_run_and_is_named(method, settings, tmp_path):
    """In one line, with the place in the user's code; the record is kept, and others are told."""
    seen = Seen()
    with pytest.raises(RunFailed) as failed:
        raysync.run(settings, callbacks=[Breaks(method), seen])
    first, where = str(failed.value).splitlines()
    assert first.startswith(f"callback {__name__}:Breaks.{method}: ValueError: no more of this (")
    assert f"{Path(__file__).name}:" in first
    [folder] = (tmp_path / "tiny").iterdir()
    assert str(folder) in where
    assert status(folder) == ("finished" if method == "on_end" else "failed")
    [end] = seen.of("end")
    assert end.summary["status"] == status(folder)
    assert len(end.evaluations) == len(raysync.load(folder).evaluations)


def test_one_that_fails_at_the_very_end_is_not_forgotten(settings, tmp_path):
    """The journal is complete then, and stays so."""

    class BreaksAtTheEnd(raysync.Callback):
        def on_progress(self, measures):
            if measures.ended is not None:
                raise ValueError("too late")

    with pytest.raises(RunFailed, match=naming("BreaksAtTheEnd.on_progress: ValueError:")):
        raysync.run(settings, callbacks=[BreaksAtTheEnd()])
    [folder] = (tmp_path / "tiny").iterdir()
    assert status(folder) == "finished"


def test_an_interrupt_is_no_failure(settings, tmp_path):
    class Interrupts(raysync.Callback):
        def on_evaluation(self, evaluation, measures):
            raise KeyboardInterrupt

    only_end, notes = OnlyEnd(), []
    callbacks = [Interrupts(), only_end, Breaks("on_end")]
    with pytest.raises(KeyboardInterrupt):
        raysync.run(settings, callbacks=callbacks, notify=notes.append)
    assert only_end.status == "stopped"
    assert any("Breaks.on_end: ValueError" in note for note in notes)


class Misspelt:
    def on_evaluate(self, evaluation, measures):
        pass


class TooFew:
    def on_evaluation(self, evaluation):
        pass


@pytest.mark.parametrize(
    ("callbacks", "said"),
    [
        ([OnlyEnd], "callbacks[0]: OnlyEnd()"),
        ([OnlyEnd(), 3], "callbacks[1]: on_start on_evaluation"),
        ([Misspelt()], "'on_evaluate' 'on_evaluation'"),
        ([TooFew()], "TooFew.on_evaluation(evaluation measures):"),
        (OnlyEnd(), "callbacks: OnlyEnd"),
    ],
)
def test_what_would_never_be_called_is_refused(callbacks, said, settings, tmp_path):
    with pytest.raises(ConfigError, match=naming(said)):
        raysync.run(settings, callbacks=callbacks)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("nowhere:Thing", "'nowhere'"),
        ("Thing", "package.module:Name"),
        (f"{__name__}:Missing", "Missing"),
        ({"name": f"{__name__}:Seen", "wort": 1}, "word"),
        (f"{__name__}:BASE", "function"),
    ],
)
def test_what_a_file_cannot_name_is_refused(named, said, settings, tmp_path):
    with pytest.raises(ConfigError, match=naming(said)):
        raysync.run(settings | {"callbacks": [named]})
    assert not (tmp_path / "tiny").exists()


def test_the_base_class_is_a_callback():
    check_callbacks([raysync.Callback()])
