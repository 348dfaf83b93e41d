"""What is no data set, model or experiment: `raysync.run` and `raysync.data_set` say so in
a line.
"""

import struct
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import raysync
from raysync import config
from raysync.config import Data
from raysync.errors import ConfigError
from raysync.training.data import datasets
from raysync.training.preparation import prepare
from tests.builders.messages import naming

X, Y = np.zeros((8, 4), np.float32), np.arange(8) % 2
GOOD = (X, Y)
DATASET = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64))
NO_ARRAYS = {
    "none": None,
    "text": "train.csv",
    "number": 3,
    "bytes": b"12345678",
    "dataset": DATASET,
    "loader": DataLoader(DATASET),
    "mapping": {"x": X, "y": Y},
    "set": {1, 2},
    "generator": (row for row in X),
    "class": np.ndarray,
    "module": nn.Linear(1, 1),
    "ragged": [[1, 2], [3]],
    "ragged tensors": [torch.zeros(2), torch.zeros(3)],
    "texts": ["a"] * 8,
    "nones": [None] * 8,
    "objects": np.array([object()] * 8),
    "complex": np.zeros((8, 4), complex),
    "dates": np.zeros((8, 4), "datetime64[s]"),
    "sparse": torch.zeros(8, 4).to_sparse(),
    "bfloat16": torch.zeros(8, 4, dtype=torch.bfloat16),
    "nothing": [],
    "scalar": np.float32(3),
    "empty": np.zeros((0, 4), np.float32),
    "three": (X, Y, Y),
}


def refused(call):
    with pytest.raises(ConfigError) as error:
        call()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
    return str(error.value)


@pytest.mark.parametrize("kind", NO_ARRAYS)
def test_what_is_no_array_is_refused_wherever_it_is_given(kind):
    wrong = NO_ARRAYS[kind]
    places = (
        (wrong, GOOD),
        (GOOD, wrong),
        ((wrong, Y), GOOD),
        (GOOD, (wrong, Y)),
        ((X, wrong), GOOD),
    )
    for train, test in places:
        part = "train" if test is GOOD else "test"
        assert part in refused(lambda train=train, test=test: raysync.data_set("mine", train, test))
    refused(lambda: raysync.data_set("mine", (wrong, Y), GOOD, tokens=True))


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ((X, Y[:5]), "8 samples 5 1"),
        ((X[:0], Y[:0]), "0 samples 0"),
        ((X, np.int64(1)), "8 samples"),
        (DATASET, "train Dataset"),
        ((X, Y, Y), "got 3 things"),
        (([[1, 2], [3]], [0, 1]), "samples inhomogeneous"),
    ],
)
def test_what_is_wrong_is_said(train, says):
    with pytest.raises(ConfigError, match=naming(says)):
        raysync.data_set("mine", train, GOOD)


@pytest.mark.parametrize(
    "settings", [{"name": None}, {"name": ""}, {"classes": 0}, {"classes": "two"}, {"classes": 1.5}]
)
def test_names_and_classes(settings):
    refused(lambda: raysync.data_set(**{"name": "mine", "train": GOOD, "test": GOOD} | settings))


def test_tensors_lists_and_arrays_are_the_same_data():
    sets = [
        raysync.data_set("mine", (x, y), GOOD)
        for x, y in (
            GOOD,
            (torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y)),
            (X.tolist(), Y.tolist()),
        )
    ]
    for one in sets:
        assert np.array_equal(one.train_x, X)
        assert np.array_equal(one.train_y, Y)


MODEL = nn.Linear(64, 10)
NO_EXPERIMENTS = [None, 3, [{"model": "mlp"}], DATASET, b"file.yaml", {3: 4}]
NO_ARGUMENTS = [
    *({"model": wrong} for wrong in (3, [MODEL], MODEL.state_dict())),
    *({"data": wrong} for wrong in (DATASET, (X, Y), "digits", DataLoader(DATASET))),
    {"watch": 3},
    {"notify": "print"},
]


@pytest.mark.parametrize(
    ("experiment", "others"),
    [
        *((wrong, {}) for wrong in NO_EXPERIMENTS),
        *(({"engine": "virtual"}, wrong) for wrong in NO_ARGUMENTS),
    ],
)
def test_a_run_of_something_else_is_refused(experiment, others, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(lambda: raysync.run(experiment, **others))
    assert not list(tmp_path.iterdir())


SWITCH = {"name": "sync-switch", "batch_sizes": {"asp": 2000}}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch_size": 1438}, "batch_size: 1,438 1,437"),
        ({"batch_size": 10**7}, "batch_size: 10,000,000"),
        ({"batch_size": 33, "data": {"name": "digits", "train_samples": 32}}, "32 training"),
        ({"paradigm": SWITCH}, "batch_sizes.asp: 2,000"),
    ],
)
def test_a_batch_is_no_larger_than_the_training_set(settings, says):
    with pytest.raises(ConfigError, match=naming(says)):
        prepare(config.validate({"engine": "virtual", **settings}))


def test_a_batch_may_be_the_whole_training_set():
    training = prepare(config.validate({"engine": "virtual", "batch_size": 1437}))
    assert training.workload_samples == 1437


@pytest.mark.parametrize("kept", [0, 4, 10, 16, 1000])
def test_a_file_that_is_cut_off_is_there_and_damaged(tmp_path, monkeypatch, kept):
    folder = tmp_path / "MNIST/raw"
    folder.mkdir(parents=True)
    images = struct.pack(">IIII", 2051, 5, 28, 28) + bytes(5 * 784)
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, 5) + bytes(5))
    assert datasets.load(Data(name="mnist", data_dir=tmp_path)).train_x.shape == (5, 1, 28, 28)
    asked = []

    def offline(self):
        asked.append(self)
        raise RuntimeError("no network")

    monkeypatch.setattr(import_module("torchvision.datasets").MNIST, "download", offline)
    file = folder / "t10k-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ConfigError, match=naming("mnist: MNIST/raw")):
        datasets.load(Data(name="mnist", data_dir=tmp_path))
    assert not asked, "what is there is not downloaded"
    file.unlink()
    with pytest.raises(ConfigError, match=naming("MNIST/raw t10k-images-idx3-ubyte")):
        datasets.load(Data(name="mnist", data_dir=tmp_path))
    assert (folder / "train-images-idx3-ubyte").exists(), "what is there is left alone"
