"""An error in the user's own code, wherever raysync calls it, is one line that has the user's."""

import re
import sys
from importlib.util import find_spec
from pickle import dumps
from subprocess import run
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import raysync
from raysync import config
from raysync.errors import ConfigError
from raysync.training.models.initial_model import InitialModel
from raysync.training.preparation import prepare
from raysync.training.tasks.supervised import Classification
from raysync.users_code import users_code
from tests.builders.messages import naming
from tests.builders.tasks import Cut, Sums

QUICK = {"engine": "virtual", "workload": {"samples": 32}, "batch_size": 4}
CODE = "tests.builders.broken_code"
BROKEN_TASKS = [
    *("Init", "BuildModel", "TrainSet", "TestSet", "ValidationSet", "Collate", "Loss", "Metrics"),
    *("Update", "Remarks", "Name", "Length", "Sample"),
]
BROKEN = [
    *({"task": f"{CODE}:{name}"} for name in BROKEN_TASKS),
    {"model": f"{CODE}:model"},
    {"model": {"name": f"{CODE}:Forward", "parameters": {"in_features": 64, "out_features": 10}}},
    {"data": f"{CODE}:data"},
    {"data": f"{CODE}:lazy_data"},
    {"paradigm": f"{CODE}:BrokenParadigm"},
    {"paradigm": f"{CODE}:BrokenPhases"},
    {"paradigm": {"name": "sync-switch", "fraction": 0.5, "then": f"{CODE}:BrokenParadigm"}},
    {"callbacks": [f"{CODE}:BrokenCallback"]},
]


@pytest.mark.parametrize("settings", BROKEN, ids=str)
def test_an_error_of_the_users_code_has_its_line(settings, tmp_path):
    if isinstance(model := settings.get("model"), dict):
        settings = {"model": {"name": model["name"], **model["parameters"]}}
    with pytest.raises(ConfigError) as raised:
        raysync.run(QUICK | {"output": str(tmp_path), **settings})
    text = str(raised.value)
    assert "KeyError" in text
    assert re.search(r"broken_code\.py:\d+", text)
    assert len(text.splitlines()) <= 2


class Late(Cut):
    """It fails in the middle of a run."""

    def __init__(self, method):
        self.method, self.left = method, 9

    def _call(self, method, *arguments):
        self.left -= method == self.method
        return {}["late"] if self.left < 0 else getattr(super(), method)(*arguments)

    def criterion(self, output, batch):
        return self._call("criterion", output, batch)

    def metrics(self, model, batch):
        return self._call("metrics", model, batch)


@pytest.mark.parametrize("method", ["criterion", "metrics"])
def test_an_error_in_the_middle_of_a_run_has_the_users_line(method, tmp_path):
    settings = {"engine": "virtual", "output": str(tmp_path), "evaluation": {"marks": 20}}
    with pytest.raises(raysync.RunFailed, match=naming("KeyError: 'late' test_users_code.py:")):
        raysync.run(settings | {"workload": {"epochs": 40}, "batch_size": 4}, task=Late(method))


def test_an_assertion_of_raysync_stays_one():
    task = Classification(None, SimpleNamespace(part=lambda *_: None))
    with pytest.raises(AssertionError), users_code("somewhere"):
        task.train_set()


# ---- lazy modules ----


class LazyTask(Cut):
    def build_model(self):
        return nn.Sequential(
            nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Dropout(0.5), nn.LazyLinear(1)
        )


def test_lazy_parts_get_shapes_and_the_same_weights_in_every_process():
    one, other = (InitialModel(LazyTask()).build(3) for _ in range(2))
    assert one[0].weight.shape == (5, 4)
    assert one.training
    for each, again in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(each, again)
    assert int(one[1].num_batches_tracked) == 0, "two samples leave no statistics"
    assert not torch.equal(one[0].weight, InitialModel(LazyTask()).build(4)[0].weight)


def test_a_run_with_lazy_parts_leaves_its_model(tmp_path):
    task = {"task": f"{__name__}:LazyTask", "output": str(tmp_path)}
    record = raysync.run(QUICK | task)
    assert record.model()(torch.zeros(2, 4)).shape == (2, 1)


def test_a_lazy_part_that_nothing_uses_is_refused_by_its_name():
    with pytest.raises(ConfigError, match="unused"):
        prepare(config.validate(QUICK | {"task": f"{CODE}:Unused"}))


# ---- torchvision that was built for another device ----


def imported(code):
    return run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_libraries_that_import_torchvision_can_be_imported_behind_raysync():
    libraries = [name for name in ("torchmetrics", "timm", "torchvision") if find_spec(name)]
    lazily = "import raysync, sys; assert 'torch' not in sys.modules"
    done = imported(f"{lazily}; import {', '.join(libraries)}")
    assert done.returncode == 0, done.stderr


def test_other_errors_of_torchvision_stay_as_they_are(tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").write_text("raise RuntimeError('of its own')")
    first = f"sys.path.insert(0, {str(tmp_path)!r})"
    done = imported(f"import sys, raysync; {first}; import torchvision")
    assert "of its own" in done.stderr
    assert "nms" not in done.stderr


def test_data_sets_do_not_travel_with_a_task():
    model = InitialModel(Sums())
    before = dumps(model)
    assert len(model.train_set) == 24
    assert dumps(model) == before
