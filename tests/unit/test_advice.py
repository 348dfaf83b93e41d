"""`raysync advise`: worlds whose best is known, who is worth training, the sweep that is written,
the command and its files.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml

from raysync import config
from raysync.cli import advise_command
from raysync.config import Link, ParadigmChoice
from raysync.errors import ConfigError
from raysync.predict.advise import PlannedTraining, advise, finalists
from raysync.predict.candidates import Candidate
from raysync.predict.exchange import Exchange
from raysync.predict.intervals import Interval
from raysync.predict.setting import Setting
from raysync.predict.step_times.rank_step_times import RankStepTimes
from raysync.predict.variations import other_clusters
from raysync.training.preparation import prepare
from tests.builders.files import write
from tests.builders.messages import tells

BSP, ASP = ParadigmChoice(name="bsp"), ParadigmChoice(name="asp")
LOCAL = ParadigmChoice.model_validate({"name": "local", "paradigm": "bsp", "steps": 8})
TIMED = {
    "engine": "virtual",
    "timing": "only",
    "batch_size": 30,
    "workload": {"iterations_per_worker": 150},
    "workers": [{"name": "fast", "step_s": 1}, {"name": "slow", "step_s": 2}],
}
LEARNING = {
    "engine": "virtual",
    "model": "mlp",
    "data": {"name": "digits", "train_samples": 600},
    "batch_size": 16,
    "workload": {"samples": 1200},
    "workers": TIMED["workers"],
    "update": {"lr": 0.1, "momentum": 0.9, "lr_scaling": "none"},
    "target": {"metric": "accuracy", "at_least": 0.5},
}


def planned(**settings):
    return PlannedTraining(prepare(config.validate(TIMED | settings)))


def advised(*choices, settings=TIMED, **options):
    return advise(config.validate(settings), choices=choices, **options)


def candidate(name="bsp", **parameters):
    return Candidate(ParadigmChoice.model_validate({"name": name, **parameters}))


# ---- answers that are known ----


def test_without_a_barrier_rates_add_up():
    """300 steps: rounds of 2 s, or 1.5 steps a second."""
    answer = advised(BSP, ASP)
    first, second = answer.comparison.by_rate
    assert (first.label, second.label) == ("asp", "bsp")
    assert (first.seconds, second.seconds) == (200, 300)
    assert second.wait_fraction.value == pytest.approx(150 / 600)
    assert first.staleness_mean.value > 0
    assert (first.update_samples, second.update_samples) == (30, 60)


def test_batches_suit_unequal_workers():
    """The fast one has twice the samples: 60 = 40 + 20, and a round takes 4/3 s in place of 2, but
    for the first one.
    """
    answer = advised(settings=TIMED | {"workload": {"iterations_per_worker": 30}})
    balanced = answer.comparison.get("balanced")
    assert balanced.seconds == pytest.approx(2 + 29 * 4 / 3)
    assert balanced.shares == {"fast-0": 40, "slow-0": 20}


def test_a_long_run_is_timed_in_part_and_its_hours_are_of_the_whole():
    short, long = (
        advised(BSP, ASP, settings=TIMED | {"workload": {"iterations_per_worker": count}})
        for count in (500, 50_000)
    )
    for one, other in zip(short.comparison.predictions, long.comparison.predictions, strict=True):
        hours, rate = one.lost_worker_hours.value, one.samples_per_s.value
        assert other.seconds == pytest.approx(100 * one.seconds, rel=0.01)
        assert other.lost_worker_hours.value == pytest.approx(100 * hours, rel=0.01)
        assert other.samples_per_s.value == pytest.approx(rate, rel=0.01)


def test_servers_are_tried_only_where_they_take_time():
    labels = {one.label for one in advised().comparison.predictions}
    assert not [label for label in labels if "server" in label]
    slow = TIMED | {"network": {"server_bandwidth_bytes_per_s": 1e6}}
    answer = advised(settings=slow)
    tried = {one.candidate.servers for one in answer.comparison.predictions}
    assert tried == {None, (2, "apart"), (1, "with-workers"), (2, "with-workers")}
    fastest = min(answer.finalists, key=lambda one: one.seconds)
    cluster = answer.sweep["cluster"]
    assert (cluster["server_shards"], cluster["server_placement"]) == fastest.candidate.servers


def test_an_exchange_is_tried_and_all_else_has_its_links():
    """A ring of two moves the vector once each way. The server's link takes it twice each way, but
    one of the pushes comes while the slow worker still computes.
    """
    link = Link(bandwidth_bytes_per_s=1e5)
    size = planned().plan.vector_bytes
    answer = advised(exchange=Exchange(size, link, servers=(1, 2)))
    seconds = {one.label: one.seconds for one in answer.comparison.predictions}
    assert seconds["bsp(exchange=ring)"] == pytest.approx(150 * (2 + size / 1e5), rel=0.01)
    assert seconds["bsp, 1 server apart"] == pytest.approx(150 * (2 + 3 * size / 1e5), rel=0.01)
    assert "bsp, 2 servers apart" in seconds
    assert answer.sweep["network"]["link"]["bandwidth_bytes_per_s"] == 1e5


def test_bandwidth_and_servers():
    network = {"link": {"bandwidth_bytes_per_s": 1e4}, "server_bandwidth_bytes_per_s": 1e4}
    workers = [{"name": "gpu", "count": 2, "step_s": 0.001}]
    setting = planned(network=network, workers=workers).setting(candidate())
    changes = {each.what: each.setting.seconds() for each in other_clusters(setting)}
    now = setting.seconds()
    assert now / changes["with twice the bandwidth"] == pytest.approx(2, rel=0.01)
    assert now / changes["with another server"] > 1.3
    assert not [name for name in changes if "slowest" in name]


def test_measured_step_times_take_the_place_of_those_of_the_file():
    steps = RankStepTimes("a test", {"rank0": (2.0, 2.0), "rank1": (8.0, 8.0)})
    traced = advised(BSP, steps=steps)
    assert traced.comparison.predictions[0].seconds == 150 * 8
    assert traced.sweep["workers"][0]["trace"] == [[2.0, 2.0]]
    workers = [{"name": "gpu", "count": 2, "per_sample_s": 0.01, "fixed_s": 0.1}]
    steps = RankStepTimes("a test", {"gpu-0": (0.8, 0.8), "gpu-1": (0.8, 0.8)})
    scaled = advised(BSP, settings=TIMED | {"workers": workers}, steps=steps)
    assert scaled.comparison.predictions[0].seconds == pytest.approx(150 * 0.8)


def test_a_setting_without_a_step_of_its_own_is_that_of_the_run():
    """What is compared is what `Setting.of` simulates, as the bottleneck of a run does."""
    plan = planned().plan
    assert planned().setting(candidate()).seconds() == Setting.of(plan, BSP).seconds()


# ---- who is worth training ----


@cache
def some_prediction():
    return advised(BSP).comparison.predictions[0]


def predicted(name, seconds, staleness, samples=128.0, **parameters):
    return replace(
        some_prediction(),
        candidate=candidate(name, **parameters),
        seconds=seconds,
        staleness_mean=Interval(staleness),
        staleness_max=round(staleness),
        update_samples=samples,
    )


def test_what_no_other_beats_is_trained_and_bsp():
    every = [
        predicted("bsp", 10, 0),
        predicted("balanced", 6, 0),
        predicted("lagtuner", 7, 1, 32),
        predicted("ssp", 5, 2, 32),
        predicted("hybrid", 4.99, 3, 32),
        predicted("asp", 3, 4, 32),
        predicted("k-batch-sync", 2, 0, 512, k=16),
        predicted("k-batch-sync", 2.5, 0, 1024, k=32),
    ]
    few = [one.label for one in finalists(every)]
    assert few == ["bsp", "k-batch-sync(k=16)", "asp", "balanced", "ssp"]
    assert [one.label for one in finalists(every, 3)] == few[:3]
    assert [one.label for one in finalists(every[:1])] == ["bsp"]


def test_smaller_pushes_beat_no_whole_ones_and_are_a_row_of_the_sweep():
    """What they cost a model is to be seen; a slow link makes them the fastest of two workers."""
    coded = replace(predicted("bsp", 4, 0), candidate=Candidate(BSP, wire="int8"))
    few = finalists([predicted("bsp", 10, 0), coded])
    assert [one.label for one in few] == ["bsp", "bsp, pushes in int8"]
    settings = LEARNING | {"network": {"server_bandwidth_bytes_per_s": 1e4}}
    rows = rows_of(advised(settings=settings))
    wires = [row["set"].get("cluster.wire") for row in rows]
    assert wires.count("int8") % 3 == 0
    assert wires.count("int8") > 0


def test_of_equals_the_first_is_trained():
    few = finalists([predicted("bsp", 10, 0), predicted("asp", 10.01, 0)])
    assert [one.label for one in few] == ["bsp"]
    few = finalists([predicted("asp", 5, 2), predicted("balanced", 5.01, 0)])
    assert [one.label for one in few] == ["balanced"], "as fast, and fresh"


# ---- the sweep ----


def rows_of(answer):
    return answer.sweep["sweep"]["grid"]["paradigm"]


def test_the_sweep_trains_each_paradigm_with_three_rates_on_paired_seeds():
    answer = advised(BSP, LOCAL, settings=LEARNING | {"seed": 7}, seeds=4)
    grid = answer.sweep["sweep"]["grid"]
    assert grid["seed"] == [7, 8, 9, 10]
    rates = [row["set"]["update.lr"] for row in rows_of(answer) if row["name"] == "bsp"]
    assert rates == [0.05, 0.1, 0.2]
    local = [row["set"] for row in rows_of(answer) if row["name"] == "local"]
    assert [row["local"]["lr"] for row in local] == rates
    assert all(row["local"]["momentum"] == 0.9 for row in local)
    assert all(row["update"] == {"lr": 1.0} for row in local)
    assert answer.trials == 2 * 3 * 4
    written = config.validate(answer.sweep)
    for row in rows_of(answer):  # each trains
        choice = ParadigmChoice.model_validate(row)
        assert config.row_of(written, choice).trains
    assert answer.sweep["data"]["validation_samples"] == 60
    assert answer.sweep["workload"] == {"samples": 1200}
    of_two = advised(BSP, settings=LEARNING | {"seeds": [3, 1]})
    assert of_two.sweep["sweep"]["grid"]["seed"] == [3, 1, 4]


def test_smaller_pushes_are_tried_where_they_save_time():
    slow = LEARNING | {"network": {"link": {"bandwidth_bytes_per_s": 1e4}}}
    answer = advised(settings=slow)
    coded = [one for one in answer.comparison.predictions if one.candidate.wire]
    for one in coded:
        whole = answer.comparison.get(one.label.removesuffix(", pushes in int8"))
        assert one.seconds < whole.seconds
    assert "bsp, pushes in int8" in [one.label for one in coded]
    free = advised(settings=LEARNING).comparison.predictions
    assert not [one for one in free if one.candidate.wire]


def test_an_experiment_with_local_steps_keeps_them():
    settings = LEARNING | {"local": {"lr": 0.2, "steps": 4}, "update": {"lr": 0.5}}
    answer = advised(BSP, settings=settings)
    rates = [row["set"] for row in rows_of(answer)]
    assert rates == [{"local.lr": rate} for rate in (0.1, 0.2, 0.4)]
    every = advised(settings=settings).comparison.predictions
    assert "local" not in {one.candidate.choice.name for one in every}


def test_on_ray_the_sweep_has_the_workers_of_the_file():
    """Not those that were measured to simulate it."""
    workers = [{"count": 2, "step_s": 0.1}]
    settings = LEARNING | {"engine": "ray", "workers": workers, "workload": {"samples": 3200}}
    steps = RankStepTimes("a test", {"a": (2.0,), "b": (8.0,)})
    answer = advised(BSP, ASP, settings=settings, steps=steps)
    assert answer.sweep["engine"] == "ray"
    assert "trace" not in answer.sweep["workers"][0]
    assert answer.comparison.get("bsp").seconds == 8 * 3200 / 32


def test_a_paradigm_in_stages_is_refused():
    with pytest.raises(ConfigError, match="stages"):
        advised(ParadigmChoice(name="decoupled"), settings=LEARNING)


@pytest.mark.parametrize(
    ("choice", "synchronous"),
    [
        ({"name": "bsp"}, True),
        ({"name": "balanced"}, True),
        ({"name": "balanced", "paradigm": {"name": "bsp"}}, True),
        ({"name": "balanced", "paradigm": "asp"}, False),
        ({"name": "asp"}, False),
    ],
)
def test_only_bsp_is_what_plain_data_parallel_training_does(choice, synchronous):
    assert candidate(**choice).is_synchronous == synchronous


# ---- the command ----


@pytest.fixture
def advise_file(call, tmp_path):
    write(tmp_path / "file.yaml", yaml.safe_dump(TIMED))
    return lambda *arguments: call("advise", "file.yaml", *arguments)


def test_the_command_answers_and_writes_a_sweep(advise_file, tmp_path):
    options = ["--processes", "1", "--paradigm", "bsp", "--paradigm", "asp", "--seeds", "2"]
    code, out, _ = advise_file(*options)
    assert code == 0
    assert tells(out, "asp")
    assert tells(out, "advice/advised-sweep.yaml")
    sweep = config.load(tmp_path / "advice" / "advised-sweep.yaml")
    assert (sweep.paradigm.name, sweep.sweep.grid["paradigm"]) == ("asp", ("bsp", "asp"))
    assert (tmp_path / "advice" / "advice.html").is_file()
    code, out, _ = advise_file(*options[:4], "--json", "-o", "elsewhere")
    answer = json.loads(out)
    assert (answer["finalists"], answer["trials"]) == (["bsp"], 3)
    assert answer["paradigms"][0]["seconds"] == 300


def test_train_runs_the_file_that_was_written(advise_file, monkeypatch):
    """With its budget, and as `raysync sweep` would."""
    seen = []

    def run(file, **options):
        seen.append((file, options))

    monkeypatch.setattr(advise_command, "sweep", run)
    options = ["--paradigm", "bsp", "--train", "--budget-minutes", "2", "--seeds", "1"]
    assert advise_file(*options)[0] == 0
    [(file, options)] = seen
    assert file == Path("advice/advised-sweep.yaml")
    assert config.load(file, options["settings"]).sweep.time_budget_s == 120
