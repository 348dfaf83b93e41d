"""TensorBoard's event files: there while the run goes on, and the same numbers as the record's."""

import struct
import sys

import pytest
import yaml
from tensorboardX.proto.event_pb2 import Event

import raysync
from raysync.record.measures import Measures
from tests.builders.reports import BASE

TRACKED = {"track": ["tensorboard"]}


def scalars(folder):
    """Tag -> (step, wall time, value) in order. The file is TFRecords: length, checksum, event,
    checksum.
    """
    found = {}
    [file] = folder.glob("events.out.tfevents.*")
    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(
                (event.step, event.wall_time, value.simple_value)
            )
    return found


@pytest.fixture
def settings(tmp_path, one_thread):
    return BASE | {"output": str(tmp_path), "paradigm": {"name": "ssp", "staleness": 3}}


def test_the_numbers_of_the_record(settings):
    record = raysync.run(settings | TRACKED)
    found, evaluations, summary = scalars(record.path), record.evaluations, record.summary
    for tag, column in (
        ("evaluation/accuracy", evaluations.accuracy),
        ("evaluation/loss", evaluations.loss),
    ):
        steps, walls, values = zip(*found[tag], strict=True)
        assert steps == tuple(round(one * 1600) for one in evaluations.progress)
        assert values == pytest.approx(column.tolist())
        since = (evaluations["at"] - evaluations["at"][0]).tolist()
        assert [wall - walls[0] for wall in walls] == pytest.approx(since, abs=1e-5)
    for tag, key in (
        ("run/samples_per_s", "throughput_samples_per_s"),
        ("run/wait_share", "wait_fraction"),
        ("staleness/mean", "staleness_mean"),
        ("staleness/max", "staleness_max"),
        ("lead/max", "lead_max"),
    ):
        step, _, value = found[tag][-1]
        assert (step, value) == (summary["samples"], pytest.approx(summary[key]))
    assert {tag for tag in found if "-" in tag} == {
        "lead/fast-0.1",
        "lead/fast-1.1",
        "lead/slow-0.1",
    }
    assert max(value for _, _, value in found["lead/fast-0.1"]) <= summary["lead_max"] + 1
    assert all(
        [step for step, _, _ in rows] == sorted(step for step, _, _ in rows)
        for rows in found.values()
    )


def test_a_long_run_can_be_followed(settings, tmp_path):
    """At each evaluation its numbers are on disk already, and those of the run about as often as
    progress shows.
    """
    seen = []

    def watch(measures: Measures):
        [folder] = (tmp_path / "tiny").iterdir()
        seen.append(
            (
                len(measures.evaluations),
                len(scalars(folder).get("evaluation/accuracy", ())),
                measures.progress,
            )
        )

    record = raysync.run(settings | TRACKED, watch=watch)
    assert len(seen) > 5
    assert all(on_disk == made for made, on_disk, _ in seen)
    assert len(scalars(record.path)["run/samples_per_s"]) <= 100 + len(record.evaluations)


def lose(settings, mark, resume=None):
    """Run, or resume, until an evaluation is there, as Ctrl-C would end it."""

    class Lost(raysync.Callback):
        def on_evaluation(self, evaluation, measures):
            if evaluation.mark >= mark:
                raise KeyboardInterrupt

    run, what = (raysync.run, settings) if resume is None else (raysync.resume, resume)
    with pytest.raises(KeyboardInterrupt):
        run(what, callbacks=[Lost()])


def test_a_run_that_goes_on_has_the_curves_of_one_that_was_never_lost(settings, tmp_path):
    """In one file, however often it is resumed, and although a process was killed as it wrote."""
    settings = settings | TRACKED | {"checkpoint": {"every_progress": 0.17}}
    whole = raysync.run(settings | {"name": "whole"})
    lose(settings, 0.35)
    [folder] = (tmp_path / "tiny").iterdir()
    [file] = folder.glob("events.*")
    file.write_bytes(file.read_bytes()[:-5])
    file.with_name(f"{file.name}.new").write_bytes(file.read_bytes()[:99])
    lose(settings, 0.65, resume=folder)
    raysync.resume(folder)
    expected, found = scalars(whole.path), scalars(folder)
    assert found.keys() == expected.keys()
    for tag, rows in found.items():
        steps = [step for step, _, _ in rows]
        assert steps == sorted(set(steps)), f"{tag} is there twice"
        values = {step: value for step, _, value in expected[tag]}
        if tag.startswith("evaluation/"):
            assert {step: value for step, _, value in rows} == values
        else:
            assert len(steps) >= 0.8 * len(values), "what was logged before stays"


def test_a_run_that_is_tracked_as_it_goes_on(settings, tmp_path):
    lose(settings | {"checkpoint": {"every_progress": 0.1}}, 0.5)
    [folder] = (tmp_path / "tiny").iterdir()
    record = raysync.resume(folder, overrides=["track=tensorboard"])
    assert len(scalars(folder)["evaluation/loss"]) == len(record.evaluations)


def test_timing_only_and_many_workers(settings):
    """Nothing is evaluated; nobody reads the leads of a hundred workers."""
    workers = [{"name": "many", "count": 100, "step_s": 0.1}]
    much = settings | {"timing": "only", "workers": workers, "workload": {"samples": 16_000}}
    record = raysync.run(much | TRACKED)
    found = scalars(record.path)
    assert set(found) == {
        "run/samples_per_s",
        "run/wait_share",
        "staleness/mean",
        "staleness/max",
        "lead/max",
    }
    assert 2 <= len(found["lead/max"]) <= 102


def test_without_it_there_is_no_file_and_no_library(settings, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "raysync.tracking.tensorboard", None)
    record = raysync.run(settings)
    assert not list(record.path.glob("events*"))


@pytest.mark.parametrize("command", ["run", "compare"])
def test_from_the_command_line(settings, tmp_path, call, command):
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(settings | {"paradigms": ["bsp"]}))
    code, _, err = call(command, tmp_path / "x.yaml", "--set", "track=tensorboard")
    assert not code, err
    [folder] = (tmp_path / "tiny").iterdir()
    assert scalars(folder)["evaluation/accuracy"]
