"""From the sweep block to trials."""

from itertools import product
from pathlib import Path

import pytest
import ray
import yaml
from hypothesis import given, settings as examples, strategies as st

from raysync import config
from raysync.config import Sweep
from raysync.config.yaml_reading import read_yaml
from raysync.errors import ConfigError, RunFailed
from raysync.running.run import run_in
from raysync.training.preparation import prepare
from raysync.tuning import grid
from raysync.tuning.sweep_run import plan
from raysync.tuning.trial import VIRTUAL_GPU_SHARE, Trials
from tests.builders.files import write
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


def swept(grid, **settings):
    return Sweep.model_validate({"grid": grid, **settings})


@examples(max_examples=40)
@given(GRIDS, st.integers(1, 3))
def test_the_points_are_the_product_times_the_draws(values, samples):
    sweep = swept(values, sample={"batch_size": {"randint": [1, 100]}}, samples=samples)
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


@examples(max_examples=40)
@given(GRIDS, st.data())
def test_a_rule_excludes_what_meets_all_of_it_and_nothing_else(values, data):
    chosen = {key: data.draw(st.sampled_from(options)) for key, options in values.items()}
    sweep = swept(values, exclude=[{key: [value] for key, value in chosen.items()}])
    left = [
        point
        for point, combination in zip(
            grid.points(swept(values), 0, "file"), product(*values.values()), strict=True
        )
        if combination != tuple(chosen.values())  # 1 == 1.0 == True, as for the sweep
    ]
    if left:
        assert grid.points(sweep, 0, "file") == left
    else:
        with pytest.raises(ConfigError, match="excluded"):
            grid.points(sweep, 0, "file")


SSP = [{"name": "ssp", "staleness": staleness} for staleness in (3, 6)]


@pytest.mark.parametrize(
    ("values", "rule", "key", "left"),
    [
        (
            {"paradigm": ["bsp", *SSP], "seed": [0, 1]},
            {"paradigm": "ssp", "seed": 1},
            "seed",
            [0, 1, 0, 0],
        ),
        ({"local": [None, {"lr": 0.1}]}, {"local": None}, "local", ["{lr: 0.1}"]),
    ],
    ids=["a name, with any parameters", "nothing, and no block without a name"],
)
def test_a_rule_excludes_by_name(values, rule, key, left):
    points = grid.points(swept(values, exclude=[rule]), 0, "file")
    assert [point[key] for point in points] == left


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def written(sweep, **settings):
        text = yaml.safe_dump({"engine": "virtual", "sweep": sweep, **settings})
        return Path(write(Path("file.yaml"), text))

    return written


SEED = {"grid": {"seed": [0, 1]}}


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
        (SEED | {"exclude": [{"sede": 0}]}, "exclude[0] 'seed'"),
        (SEED | {"exclude": [{"seed": 2}]}, "exclude[0]: grid seed: 2"),
        (SEED | {"exclude": [{"seed": [0, 1]}]}, "2 combinations"),
        ({"grid": {"seed": [*range(40)], "batch_size": [*range(1, 31)]}}, "1,200 1,000 --yes"),
        (SEED | {"stop": {"acuracy": 1}}, "'accuracy'"),
        (SEED | {"metric": "los"}, "'loss'"),
        (SEED | {"scheduler": "ahsa"}, "'asha'"),
        (SEED | {"scheduler": {"name": "asha", "grace_period": -1}}, "asha: grace_period"),
        (SEED | {"scheduler": {"name": "asha", "grace_perod": 1}}, "'grace_period'"),
        (SEED | {"search": "optna"}, "'optuna'"),
        (SEED | {"search": "optuna", "exclude": [{"seed": 0}]}, "searcher"),
        (SEED | {"sample": {"seed": {"randint": [0, 9]}}}, "grid sample"),
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
    with pytest.raises(ConfigError, match=naming(f"sweep.scheduler: {name}: asha median_stopping")):
        plan(written(SEED | {"scheduler": name}))
    with pytest.raises(ConfigError, match=naming("sweep.search: bohb: optuna")):
        plan(written(SEED | {"scheduler": name, "search": "bohb"}))


def test_many_trials_only_if_they_are_meant(written, monkeypatch):
    monkeypatch.setattr("raysync.tuning.sweep_run.MOST_UNASKED", 5)
    assert plan(written({"grid": {"seed": list(range(5))}})).count == 5
    file = written({"grid": {"seed": list(range(6))}})
    with pytest.raises(ConfigError, match=naming("6 5 --yes")):
        plan(file)
    assert plan(file, many=True).count == 6


def test_there_must_be_something_to_go_on_with(written):
    with pytest.raises(ConfigError, match=naming("folder")):
        plan(written(SEED), resume="runs/nothing")


def test_a_trial_is_the_file_with_its_settings(written):
    file = written(
        {"grid": {"workers.*.speed": [0.5], "paradigm": [{"name": "ssp", "staleness": 6}]}},
        workers=[{"name": "a"}, {"name": "b", "speed": 2}],
        update={"lr": 0.3},
    )
    made = plan(
        file, ["seed=7", "cluster.address=somewhere:6379", "sweep.stop={training_iteration: 3}"]
    )
    [point] = made.points
    before = config.load(file, ["seed=7"])
    assert made.trials.experiment(point, "00000") == before.model_copy(
        update={
            "workers": tuple(each.model_copy(update={"speed": 0.5}) for each in before.workers),
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


@pytest.mark.parametrize(
    ("workers", "there", "share"),
    [
        ("{count: 8, cpus: 4}", {"GPU": 2}, {}),
        ("{gpus: 1}", {}, {}),
        ("{gpus: 1}", {"GPU": 2}, {"GPU": VIRTUAL_GPU_SHARE}),
    ],
)
def test_virtual_trials_take_one_cpu_and_share_the_gpus_of_the_cluster(
    tmp_path, monkeypatch, workers, there, share
):
    monkeypatch.setattr(ray, "cluster_resources", lambda: there)
    trials = Trials(tmp_path, tmp_path, "file", f"engine: virtual\nworkers: [{workers}]", ())
    assert trials.resources({}).bundles == [{"CPU": 1.0} | share]
