"""From the sweep block to trials."""

from itertools import product
from pathlib import Path

import pytest
import ray
import yaml
from hypothesis import given, strategies as st

from raysync import config
from raysync.config import Sweep
from raysync.config.yaml_reading import read_yaml
from raysync.errors import ConfigError, RunFailed
from raysync.running.run import run_in
from raysync.training.preparation import prepare
from raysync.tuning import grid
from raysync.tuning.sweep_run import plan
from raysync.tuning.trial import VIRTUAL_GPU_SHARE, Trials
from tests.builders.messages import naming

KEYS = st.sampled_from(["seed", "update.lr", "paradigm", "workers.*.speed", "model"])
VALUES = st.one_of(
    st.integers(0, 5),
    st.floats(0.001, 1),
    st.sampled_from(["bsp", "mlp", "1e-3", "010", "null", "no", "{a", "a: b", "[1]"]),
    st.booleans(),
    st.none(),
    st.fixed_dictionaries({"name": st.just("ssp"), "staleness": st.integers(0, 9)}),
    st.lists(st.integers(0, 3), max_size=2),
)
GRIDS = st.dictionaries(KEYS, st.lists(VALUES, min_size=1, max_size=3), min_size=1, max_size=3)


@given(GRIDS, st.integers(1, 3))
def test_the_points_are_the_product_times_the_draws(values, samples):
    sweep = Sweep.model_validate(
        {"grid": values, "sample": {"batch_size": {"randint": [1, 100]}}, "samples": samples}
    )
    points = grid.points(sweep, 0, "file")
    assert len(points) == grid.count(sweep)
    combinations = [tuple(map(grid.plain, one)) for one in product(*values.values())]
    assert [tuple(point[key] for key in values) for point in points] == [
        one for one in combinations for _ in range(samples)
    ]
    draws = [point["batch_size"] for point in points]
    assert all(type(draw) is int for draw in draws)
    assert draws == draws[:samples] * len(combinations)


@given(VALUES)
def test_a_value_comes_back_from_what_a_trial_is_told(value):
    key, _, text = grid.override("key", grid.plain(value)).partition("=")
    assert key == "key"
    assert repr(read_yaml(text, "key")) == repr(value), "as it is, and of its type"
    assert "\n" not in text


def test_what_is_no_scalar_is_text_for_tables():
    assert grid.plain({"name": "ssp", "bound": 3}) == "{name: ssp, bound: 3}"
    assert (grid.plain(None), grid.plain([1, 2]), grid.plain(0.5)) == ("null", "[1, 2]", 0.5)


@given(GRIDS, st.data())
def test_a_rule_excludes_what_meets_all_of_it_and_nothing_else(values, data):
    chosen = {key: data.draw(st.sampled_from(options)) for key, options in values.items()}
    sweep = Sweep.model_validate(
        {"grid": values, "exclude": [{key: [value] for key, value in chosen.items()}]}
    )
    whole = grid.points(Sweep.model_validate({"grid": values}), 0, "file")
    combinations = product(*values.values())
    left = [
        point
        for point, combination in zip(whole, combinations, strict=True)
        if combination != tuple(chosen.values())  # 1 == 1.0 == True, as for the sweep
    ]
    if left:
        assert grid.points(sweep, 0, "file") == left
    else:
        with pytest.raises(ConfigError, match="excluded"):
            grid.points(sweep, 0, "file")


def test_a_paradigm_is_excluded_by_its_name_with_any_parameters():
    paradigms = ["bsp", {"name": "ssp", "staleness": 3}, {"name": "ssp", "staleness": 6}]
    rules = [{"paradigm": "ssp", "seed": 1}]
    sweep = Sweep.model_validate(
        {"grid": {"paradigm": paradigms, "seed": [0, 1]}, "exclude": rules}
    )
    assert [point["seed"] for point in grid.points(sweep, 0, "file")] == [0, 1, 0, 0]


def test_nothing_excludes_no_block_that_has_no_name():
    blocks = [None, {"lr": 0.1}, {"lr": 0.2}]
    sweep = Sweep.model_validate({"grid": {"local": blocks}, "exclude": [{"local": None}]})
    assert [point["local"] for point in grid.points(sweep, 0, "file")] == ["{lr: 0.1}", "{lr: 0.2}"]


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(sweep, **settings):
        Path("file.yaml").write_text(
            yaml.safe_dump({"engine": "virtual", "sweep": sweep, **settings}), encoding="utf-8"
        )
        return Path("file.yaml")

    return write


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        (None, "`sweep:`"),
        ({}, "varied"),
        ({"grid": {"seed": []}}, "1 item"),
        ({"grid": {"update.lrr": [0.1]}}, "'lrr' 'lr'"),
        ({"grid": {"modle": ["mlp"]}}, "'model'"),
        ({"grid": {"paradigm": ["sps"]}}, "paradigm=sps 'ssp'"),
        ({"grid": {"workers.3.speed": [1]}}, "sweep: 'workers.3.speed=1': '3' 1"),
        ({"grid": {"update.lr": [-1]}}, "greater than 0"),
        ({"grid": {"seeds": [[0]]}}, "seeds `seed`"),
        ({"grid": {"output": ["a"]}}, "output"),
        ({"grid": {"seed": [0]}, "exclude": [{"sede": 0}]}, "exclude[0] 'seed'"),
        ({"grid": {"seed": [0, 1]}, "exclude": [{"seed": 2}]}, "exclude[0]: grid seed: 2"),
        ({"grid": {"seed": [0, 1]}, "exclude": [{"seed": [0, 1]}]}, "2 combinations"),
        (
            {"grid": {"seed": list(range(40)), "batch_size": list(range(1, 31))}},
            "1,200 1,000 --yes",
        ),
        ({"grid": {"seed": [0]}, "stop": {"acuracy": 1}}, "'accuracy'"),
        ({"grid": {"seed": [0]}, "metric": "los"}, "'loss'"),
        ({"grid": {"seed": [0]}, "scheduler": "ahsa"}, "'asha'"),
        (
            {"grid": {"seed": [0]}, "scheduler": {"name": "asha", "grace_period": -1}},
            "asha: grace_period",
        ),
        (
            {"grid": {"seed": [0]}, "scheduler": {"name": "asha", "grace_perod": 1}},
            "'grace_period'",
        ),
        ({"grid": {"seed": [0]}, "search": "optna"}, "'optuna'"),
        ({"grid": {"seed": [0, 1]}, "search": "optuna", "exclude": [{"seed": 0}]}, "searcher"),
        ({"grid": {"seed": [0]}, "sample": {"seed": {"randint": [0, 9]}}}, "grid sample"),
        ({"sample": {"update.lr": {"loguniform": [0, 1]}}}, "loguniform(0 1"),
        ({"sample": {"update.lr": {"logunif": [0, 1]}}}, "'loguniform'"),
        ({"sample": {"update.lrr": {"uniform": [0, 1]}}, "search": "optuna"}, "mean 'lr'"),
        ({"grid": {"seed": [0, 1], "paradigm": ["bsp", "sps"]}, "search": "optuna"}, "'ssp'"),
        ({"sample": {"update.lr": {"loguniform": [0, 1]}}, "search": "optuna"}, "loguniform(0 1"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(written, sweep, says):
    with pytest.raises(ConfigError, match=naming(says)) as caught:
        plan(written(sweep, workers=[{"name": "a"}]))
    assert len(str(caught.value).splitlines()) <= 2
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", ["hyperband", "pbt", "pb2", "pbt_replay", "hb_bohb"])
def test_schedulers_that_pause_or_clone_trials_are_refused_and_others_named(written, name):
    with pytest.raises(ConfigError, match=rf"sweep\.scheduler: {name}: .* asha, .*median_stopping"):
        plan(written({"grid": {"seed": [0]}, "scheduler": name}))
    with pytest.raises(ConfigError, match=naming("sweep.search: bohb: optuna")):
        plan(written({"grid": {"seed": [0]}, "scheduler": name, "search": "bohb"}))


def test_many_trials_only_if_they_are_meant(written, monkeypatch):
    monkeypatch.setattr("raysync.tuning.sweep_run.MOST_UNASKED", 5)
    assert plan(written({"grid": {"seed": list(range(5))}})).count == 5
    file = written({"grid": {"seed": list(range(6))}})
    with pytest.raises(ConfigError, match=naming("6 5 --yes")):
        plan(file)
    assert plan(file, many=True).count == 6


def test_there_must_be_something_to_go_on_with(written):
    with pytest.raises(ConfigError, match=naming("folder")):
        plan(written({"grid": {"seed": [0]}}), resume="runs/nothing")


def test_a_trial_is_the_file_with_its_settings(written, tmp_path):
    file = written(
        {"grid": {"workers.*.speed": [0.5], "paradigm": [{"name": "ssp", "staleness": 6}]}},
        workers=[{"name": "a"}, {"name": "b", "speed": 2}],
        update={"lr": 0.3},
    )
    made = plan(
        file, ["seed=7", "cluster.address=somewhere:6379", "sweep.stop={training_iteration: 3}"]
    )
    [point] = made.points
    experiment = made.trials.experiment(point, "00000")
    assert experiment == config.load(file, ["seed=7"]).model_copy(
        update={
            "workers": tuple(
                group.model_copy(update={"speed": 0.5}) for group in config.load(file).workers
            ),
            "paradigm": config.ParadigmChoice.model_validate({"name": "ssp", "staleness": 6}),
            "sweep": None,
            "stop": config.Stop.model_validate({"when": {"training_iteration": 3}}),
            "name": "00000",
            "output": made.trials.folder / "records",
        }
    )


def test_a_trial_is_watched_under_the_name_of_its_sweep(written):
    """So that a dashboard can choose them all, and a person tell them apart."""
    trials = plan(written({"grid": {"seed": [0]}}, name="mine")).trials
    experiment = trials.experiment({"seed": 0}, "00000")

    class Engine:
        places = {}

        def run(self, training, paradigm, title, *_):
            raise RunFailed(title.experiment)

    for sweep, named in ((trials.name, "mine/00000"), ("", "00000")):
        with pytest.raises(RunFailed, match=f"^{named}$"):
            run_in(Engine(), prepare(experiment), experiment.paradigm, sweep=sweep)


def test_virtual_trials_take_one_cpu(tmp_path):
    trials = Trials(
        tmp_path, tmp_path, "file", "engine: virtual\nworkers: [{count: 8, cpus: 4}]", ()
    )
    assert trials.resources({}).bundles == [{"CPU": 1.0}]


@pytest.mark.parametrize(("there", "share"), [({}, {}), ({"GPU": 2}, {"GPU": VIRTUAL_GPU_SHARE})])
def test_virtual_trials_of_workers_with_gpus_share_those_of_the_cluster(
    tmp_path, monkeypatch, there, share
):
    monkeypatch.setattr(ray, "cluster_resources", lambda: there)
    trials = Trials(tmp_path, tmp_path, "file", "engine: virtual\nworkers: [{gpus: 1}]", ())
    assert trials.resources({}).bundles == [{"CPU": 1.0} | share]
