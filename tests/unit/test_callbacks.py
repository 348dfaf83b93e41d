"""Callbacks of Python: what they see, when they are refused, and what happens if one fails."""

from pathlib import Path

import pytest

import raysync
from raysync.errors import ConfigError, RunFailed
from raysync.tracking.callback import METHODS
from tests.builders.messages import naming, tells
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
    """Breaks in one of its methods, perhaps at the last call alone."""

    def __init__(self, method, error=ValueError, at_end=False):
        def fail(*arguments):
            if not at_end or arguments[-1].ended is not None:
                raise error("no more\nof this")

        setattr(self, method, fail)


@pytest.fixture
def settings(tmp_path, one_thread):
    return BASE | {"output": str(tmp_path)}


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


@pytest.mark.parametrize(
    ("method", "at_end", "status"),
    [
        *((method, False, "failed") for method in METHODS if method != "on_end"),
        ("on_end", False, "finished"),
        ("on_progress", True, "finished"),
    ],
)
def test_one_that_fails_ends_the_run_and_is_named(method, at_end, status, settings, tmp_path):
    """With the place in the user's code; the record is kept, and others are told. A journal that is
    complete stays so.
    """
    seen = Seen()
    with pytest.raises(RunFailed) as failed:
        raysync.run(settings, callbacks=[Breaks(method, at_end=at_end), seen])
    first, where = str(failed.value).splitlines()
    assert tells(first, f"{__name__}:Breaks.{method}: ValueError: {Path(__file__).name}:")
    [folder] = (tmp_path / "tiny").iterdir()
    assert str(folder) in where
    record = raysync.load(folder)
    [end] = seen.of("end")
    assert record.summary["status"] == end.summary["status"] == status
    assert len(end.evaluations) == len(record.evaluations)


def test_an_interrupt_is_no_failure(settings):
    only_end, notes = OnlyEnd(), []
    callbacks = [Breaks("on_evaluation", KeyboardInterrupt), only_end, Breaks("on_end")]
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
    ("callbacks", "named", "said"),
    [
        ([OnlyEnd], [], "callbacks[0]: OnlyEnd()"),
        ([OnlyEnd(), 3], [], "callbacks[1]: on_start on_evaluation"),
        ([Misspelt()], [], "'on_evaluate' 'on_evaluation'"),
        ([TooFew()], [], "TooFew.on_evaluation(evaluation measures):"),
        (OnlyEnd(), [], "callbacks: OnlyEnd"),
        ([], ["nowhere:Thing"], "'nowhere'"),
        ([], ["Thing"], "package.module:Name"),
        ([], [f"{__name__}:Missing"], "Missing"),
        ([], [{"name": f"{__name__}:Seen", "wort": 1}], "word"),
        ([], [f"{__name__}:BASE"], "function"),
    ],
)
def test_what_would_never_be_called_is_refused(callbacks, named, said, settings, tmp_path):
    """As an object, or named in a file."""
    with pytest.raises(ConfigError, match=naming(said)):
        raysync.run(settings | {"callbacks": named}, callbacks=callbacks)
    assert not (tmp_path / "tiny").exists()
