"""A user's task: what is read, what is measured, and what is refused before a run."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.utils.data import Subset, TensorDataset

import raysync
from raysync import config
from raysync.errors import ConfigError
from raysync.running.run import run
from raysync.training.data.batch_reader import BatchReader
from raysync.training.data.batch_structure import batch_to, split_batch
from raysync.training.data.batches import Batches
from raysync.training.data.data_set import data_set
from raysync.training.evaluation import evaluate
from raysync.training.preparation import prepare
from raysync.training.vectors.flat import FlatModel
from raysync.training.worker.gradient import GradientComputation
from tests.builders.messages import naming
from tests.builders.tasks import Cut, NoLength, Pairs, Stream, Sums, SumUp, Validated, Words, padded
from tests.builders.virtual import QUICK

SUMS = "tests.builders.tasks:Sums"


@pytest.fixture(autouse=True)
def _records_in_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def prepared(given=None, **more):
    return prepare(config.validate(QUICK | more), task=given)


def reader(workers=0, slot="w-0", seed=0):
    return BatchReader(Words(20, noisy=True), padded, Batches(np.arange(20), seed, slot), workers)


def same(one, other):
    return all(torch.equal(one[key], other[key]) for key in ("x", "y"))


# ---- what is read ----


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(1, 6))
def test_a_batch_is_a_function_of_seed_slot_and_clock(clocks, size):
    """Its samples, their order and their noise are: whatever was read before."""
    used = reader()
    for clock in clocks:
        [batch] = used.read(clock, [size])
        assert same(batch, reader().read(clock, [size])[0])
    [batch] = used.read(3, [6])
    assert not same(batch, reader(slot="w-1").read(3, [6])[0])
    assert not same(batch, reader(seed=1).read(3, [6])[0])


def test_noise_differs_from_sample_to_sample_and_from_batch_to_batch():
    samples, plain = Words(1, noisy=True), Words(1)
    repeated = BatchReader(samples, padded, Batches(np.zeros(1, int), 0, "w-0"))
    noise = [repeated.read(clock, [3])[0]["x"] - plain[0]["x"] for clock in range(2)]
    assert len({round(float(each[index].mean()), 7) for each in noise for index in range(3)}) == 6


def test_reading_leaves_the_generators_as_they_were():
    drawn = []
    for reads in (False, True):
        torch.manual_seed(1), np.random.seed(1), random.seed(1)
        if reads:
            reader().read(0, [3])
        drawn.append((torch.rand(1).item(), np.random.random(), random.random()))
    assert drawn[0] == drawn[1]


def test_processes_that_read_ahead_read_the_same():
    """In order, after a jump, and after the size has changed."""
    ahead, here = reader(workers=1), reader()
    for clock, sizes in ((0, [4]), (1, [4]), (2, [4]), (7, [4]), (8, [2, 1]), (9, [2, 1])):
        for one, other in zip(ahead.read(clock, sizes), here.read(clock, sizes), strict=True):
            assert same(one, other)


def test_parts_are_a_batch_cut_in_order():
    [whole], parts = reader().read(5, [6]), reader().read(5, [2, 3, 1])
    assert [len(part["y"]) for part in parts] == [2, 3, 1]
    assert torch.equal(torch.cat([part["y"] for part in parts]), whole["y"])


def test_batches_of_any_structure_are_moved_and_split():
    batch = {"x": torch.arange(6), "more": (torch.ones(6, 2), [torch.zeros(6)]), "name": "plain"}
    moved = batch_to(batch, lambda tensor: tensor + 1)
    assert moved["x"].tolist() == [1, 2, 3, 4, 5, 6]
    assert moved["more"][1][0].tolist() == [1.0] * 6
    assert moved["name"] == "plain"
    first, second = split_batch(batch, [4, 2])
    assert second["x"].tolist() == [4, 5]
    assert second["more"][0].shape == (2, 2)
    assert first["more"][1][0].shape == (4,)
    assert first["name"] == "plain"


def test_the_model_sees_no_more_than_a_micro_batch_at_once():
    sizes = []

    class Seen(Sums):
        def loss(self, model, batch):
            sizes.append(len(batch["y"]))
            return super().loss(model, batch)

    training = prepared(Seen())
    sizes.clear()
    devices = ["cpu", "cpu"]
    computation = GradientComputation(training.build(), training.task, devices, micro_batch=2)
    computation.compute(training.reader("worker-0"), 0, 9)
    assert sizes == [2, 2, 1, 2, 2]


# ---- what is measured ----


class Measured(Sums):
    """Metrics of all kinds, of which the values are known."""

    def __init__(self, metric):
        super().__init__()
        self.metric = metric

    def metrics(self, model, batch):
        output = model(batch["x"])
        self.metric.update(output, batch["y"])
        return {
            "mean": float((output - batch["y"]).mean()),
            "of_lengths": raysync.Average(sum(batch["lengths"]), len(batch["lengths"])),
            "torch": self.metric,
        }


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_metrics_do_not_depend_on_the_batches(batch_size):
    """A mean is weighted by samples, an Average by what it counts, and an object of torchmetrics
    begins each evaluation anew.
    """
    torchmetrics = pytest.importorskip("torchmetrics")
    task = Measured(torchmetrics.MeanSquaredError())
    torch.manual_seed(0)
    flat, samples = FlatModel(task.build_model()), task.test_set()
    weights = torch.randn(flat.size)
    for _ in range(2):
        got = evaluate(flat, weights, task, samples, batch_size)
    batch = padded([samples[index] for index in range(7)])
    with torch.no_grad():
        errors = flat.module(batch["x"]) - batch["y"]
    assert got["mean"] == pytest.approx(float(errors.mean()), rel=1e-5)
    assert got["of_lengths"] == sum(batch["lengths"]) / 7
    assert got["torch"] == pytest.approx(float((errors**2).mean()), rel=1e-5)
    assert got["loss"] == pytest.approx(got["torch"], rel=1e-5), "measured though not returned"


def test_a_validation_set_is_measured_until_the_end_and_the_test_set_once():
    made = []

    class Counted(Validated):
        """Making a data set may read the names of all files in a folder: each is made once."""

        def train_set(self):
            made.append("train")
            return super().train_set()

        def test_set(self):
            made.append("test")
            return super().test_set()

        def validation_set(self):
            made.append("validation")
            return super().validation_set()

    record = run(QUICK, task=Counted())
    assert sorted(made) == ["test", "train", "validation"]
    frame, summary = record.evaluations, record.summary
    assert list(frame.mark) == [0, 0.5, 1]
    assert frame.test_mae.isna().tolist() == [True, True, False]
    assert summary["final_mae"] == frame.mae.iloc[-1] != frame.test_mae.iloc[-1]
    assert summary["metric"] == "mae"


def test_validation_samples_are_taken_out_of_the_training_set():
    settings = {"data": {"name": "digits", "train_samples": 100, "validation_samples": 30}}
    training, whole = prepared(**settings), prepared(data={"name": "digits", "train_samples": 100})
    data = training.task.data
    rows = [*data.train_x, *data.validation_x]
    assert sorted(map(np.ndarray.tobytes, rows)) == sorted(
        map(np.ndarray.tobytes, whole.task.data.train_x)
    )
    assert (len(data.train_x), training.workload_samples) == (70, 48)
    shares = np.bincount(data.validation_y) / 30
    assert training.chance_accuracy == shares.max()
    assert training.metrics == ("accuracy", "loss", "test_accuracy", "test_loss")
    with pytest.raises(ConfigError, match=naming("100 100 digits")):
        prepared(data={"name": "digits", "train_samples": 100, "validation_samples": 100})
    with pytest.raises(ConfigError, match=naming("data.validation_samples:")):
        prepared(Sums(), data={"validation_samples": 5})


def test_a_task_runs_by_name_and_as_an_object():
    """The same training, the same journal."""
    named = {"name": SUMS, "width": 5}
    by_name, given_one = run(QUICK | {"task": named}), run(QUICK, task=Sums(width=5))
    assert by_name.summary["model"] == given_one.summary["model"] == "Sums"
    assert by_name.evaluations.equals(given_one.evaluations)
    assert by_name.pushes.loss.notna().all()
    again = run(by_name.path / "config.yaml")
    assert again.evaluations.equals(by_name.evaluations)
    with pytest.raises(ConfigError, match=naming("object")):
        run(given_one.path / "config.yaml")


def test_only_so_many_samples_are_used():
    data = {"train_samples": 10, "test_samples": 3}
    training = prepared(Sums(), data=data, workload={"epochs": 2})
    assert training.workload_samples == 20
    assert {index for each in training.shards.values() for index in each} == set(range(10))


def test_a_lazy_data_set_learns_as_one_in_memory():
    """The built-in classification, of the same samples: read one by one, or as arrays."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 6)).astype(np.float32), rng.integers(3, size=40)
    lazy = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    one = run(QUICK, data=data_set("mine", (x, y), (x, y), classes=3))
    other = run(QUICK, data=data_set("mine", lazy, lazy, classes=3))
    assert np.allclose(one.pushes.loss, other.pushes.loss, atol=1e-6)
    assert np.allclose(one.evaluations.loss, other.evaluations.loss, atol=1e-6)
    assert other.evaluations.accuracy.equals(one.evaluations.accuracy)


def test_dirichlet_deals_by_targets_or_by_the_labels_of_the_task():
    class Labelled(Sums):
        def labels(self, samples):
            return [len(row) % 2 for row in samples.rows]

    data = {"partition": "dirichlet", "alpha": 0.05}
    training = prepared(Labelled(samples=400), data=data)
    labels = np.array(Labelled().labels(Words(400)))
    shares = [labels[indices].mean() for indices in training.shards.values()]
    assert abs(shares[0] - shares[1]) > 0.2
    with pytest.raises(ConfigError, match=naming("`targets`")):
        prepared(Sums(), data=data)


def test_regression_is_built_in():
    settings = QUICK | {
        "data": "diabetes",
        "model": {"name": "mlp", "hidden": [8]},
        "batch_size": 16,
        "workload": {"epochs": 6},
        "update": {"lr": 0.1},
    }
    frame = run(settings).evaluations
    assert frame.loss.iloc[-1] < 0.8 * frame.loss.iloc[0]
    assert list(frame.columns) == ["mark", "progress", "version", "at", "loss", "mae"]
    with pytest.raises(ConfigError, match=naming("classification diabetes")):
        prepare(config.validate(settings | {"task": "classification"}))


# ---- what is refused before a run ----


class Wrong(Sums):
    """A task of which one method returns something else."""

    def __init__(self, method, value):
        super().__init__()
        setattr(self, method, lambda *_: value() if callable(value) else value)


class Unlike(Sums):
    """Samples 0 to 2 collate, the fourth does not."""

    def collate(self, samples):
        return torch.stack([sample["x"] for sample in samples])


class Frozen(Sums):
    def build_model(self):
        return super().build_model().requires_grad_(False)


class Named(Sums):
    primary = "map"


class Empty(Sums):
    def test_set(self):
        return Subset(Words(3), [])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (3, "raysync.Task"),
        (Wrong("build_model", 3), "build_model nn.Module"),
        (Wrong("train_set", Stream()), "train_set: Stream"),
        (Wrong("train_set", NoLength()), "train_set: NoLength __len__"),
        (Empty(), "test_set:"),
        (Wrong("loss", torch.zeros(4)), "loss: (4,)"),
        (Wrong("loss", 0.5), "loss:"),
        (Wrong("loss", torch.tensor(float("nan"))), "loss: nan"),
        (Wrong("loss", torch.tensor(1.0)), "trainable parameter"),
        (Wrong("loss", lambda: 1 / 0), "loss: ZeroDivisionError: test_tasks.py:"),
        (Wrong("metrics", 3), "mapping"),
        (Wrong("metrics", {"mae": "low"}), "mae:"),
        (Wrong("metrics", {"at": 1}), "'at' metric"),
        (Wrong("metrics", {}), "'mae'"),
        (Named(), "primary: 'map' 'mae'"),
        (Frozen(), "trainable parameter"),
        (Unlike(), "batch: RuntimeError"),
    ],
)
def test_a_task_that_cannot_be_trained_is_refused(task, message):
    with pytest.raises(ConfigError, match=naming(message)) as error:
        prepared(task)
    assert len(str(error.value).splitlines()) <= 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "clasification"}, "task 'clasification' 'classification'"),
        ({"task": "tests.builders.tasks:Summs"}, "'Summs'"),
        ({"task": "tests.builders.tasks:not_a_task"}, "class"),
        ({"task": {"name": SUMS, "deep": 1}}, "width samples"),
        ({"task": {"name": "classification", "deep": 1}}, "'deep'"),
        ({"task": SUMS, "model": "lenet"}, "model: task Sums model"),
        ({"task": SUMS, "data": {"augment": "crop-flip"}}, "data.augment: task Sums"),
        ({"task": SUMS, "batch_size": 25}, "batch_size: 25 24 Sums"),
        ({"task": SUMS, "init_from": "none.safetensors"}, "init_from:"),
        ({"task": "language-model"}, "labels digits"),
        ({"data": {"name": "diabetes", "partition": "dirichlet"}}, "numbers"),
    ],
)
def test_settings_that_do_not_go_with_a_task_are_refused(settings, message):
    with pytest.raises(ConfigError, match=naming(message)):
        prepared(**settings)


def test_a_task_cannot_be_given_beside_a_model():
    with pytest.raises(ConfigError, match="model"):
        prepare(config.validate(QUICK), model=nn.Linear(1, 1), task=Sums())


def test_lazy_parts_go_together():
    with pytest.raises(ConfigError, match=naming("classes")):
        data_set("mine", Pairs(4), Pairs(4))
    with pytest.raises(ConfigError, match=naming("dict")):
        data_set("mine", Words(4), Words(4), classes=2)
    lazy = TensorDataset(torch.zeros(8, 3, 8, 8), torch.zeros(8, dtype=torch.int64))
    mine = data_set("mine", lazy, lazy, classes=2)
    with pytest.raises(ConfigError, match=naming("augment:")):
        prepare(config.validate(QUICK | {"data": {"augment": "crop-flip"}}), data=mine)


def test_stages_need_a_loss_of_the_output():
    paradigm = {"name": "decoupled", "modules": 2}
    with pytest.raises(ConfigError, match=naming("`inputs` `criterion`")):
        run(QUICK | {"paradigm": paradigm}, task=Sums())
    record = run(QUICK | {"paradigm": paradigm}, task=Cut())
    assert record.summary["final_loss"] < record.evaluations.loss.iloc[0]
    with pytest.raises(ConfigError, match=naming("micro_batch: 2:")):
        run(QUICK | {"paradigm": paradigm, "micro_batch": 2}, task=Cut())


def test_other_seeds_have_other_weights_and_batches():
    training = prepared(Sums())
    other = training.with_seed(1)
    one, two = (FlatModel(each.build()).initial() for each in (training, other))
    assert not torch.equal(one, two)
    assert not np.array_equal(training.shards["worker-0"], other.shards["worker-0"])
    assert replace(other, experiment=training.experiment).experiment.seed == 0


# ---- weights to start from ----


def test_a_run_starts_from_weights_of_a_file_or_of_a_record(tmp_path):
    """Its first evaluation is the last one of the run that left them."""
    first, file = run(QUICK | {"task": SUMS}), tmp_path / "w.ckpt"
    torch.save({"epoch": 3, "state_dict": first.state_dict()}, file)
    for place in (file, first.path):
        second = run(QUICK | {"task": SUMS, "init_from": str(place)})
        assert second.evaluations.mae.iloc[0] == first.evaluations.mae.iloc[-1]
        assert second.evaluations.mae.iloc[-1] != first.evaluations.mae.iloc[-1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"inner.weight": torch.zeros(3, 4), "outer.weights": torch.zeros(1, 3)},
            "outer.weight outer.bias outer.weights",
        ),
        (
            {name: torch.zeros(2, 2) for name in SumUp().state_dict()},
            "inner.weight 2 2 3 4 outer.weight",
        ),
        ([1, 2], "state_dict"),
        ({"a": 1}, "state_dict"),
    ],
)
def test_weights_that_do_not_fit_are_refused(content, message, tmp_path):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=naming(f"init_from {message}")) as error:
        prepared(Sums(), init_from=str(tmp_path / "w.pt"))
    assert len(str(error.value)) < 500
