"""The trained model of a run: what its file holds, how it is read back, and what is refused.

Each run is virtual; the evaluator's code is that of both engines.
"""

import re

import pytest
import torch
from safetensors.torch import load, load_file, save, save_file
from torch import nn
from typer.testing import CliRunner

import raysync
from raysync import config
from raysync.cli import app
from raysync.engine.kept_models import SavedModel
from raysync.errors import ConfigError, RunFailed
from raysync.training.files.model_file import OFFERED, in_order
from raysync.training.preparation import prepare
from tests.builders.messages import naming, tells
from tests.builders.models import last_measured, measured
from tests.builders.virtual import DATA, QUICK

TINY = QUICK | {"workload": {"samples": 96}, "evaluation": {"marks": 3}, "update": {"lr": 0.1}}
IMAGES = {"data": {"name": "synthetic", "parameters": {"shape": [1, 8, 8], "train": 96}}}
CUT = {"paradigm": {"name": "decoupled", "modules": 2, "groups": 1}}


class Zoo(nn.Module):
    """One of each: tied weights, a frozen parameter, statistics, and buffers that travel and do not
    appear, or are no floats.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.again = nn.Linear(3, 3, bias=False)
        self.again.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.full((3,), 1.5), requires_grad=False)
        self.head = nn.Linear(3, 4)
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("hidden", torch.ones(3), persistent=False)

    def forward(self, x):
        x = self.norm(self.again(self.first(x)) * self.scale)
        return self.head(torch.where(self.mask, x, self.hidden))


class InWords(nn.Module):
    """Can be cut, and its tensors have names of their own, in another order than it computes."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 4)
        self.inner = nn.ModuleDict({"norm": nn.BatchNorm1d(5), "linear": nn.Linear(3, 5)})
        self.sequence = [self.inner["linear"], self.inner["norm"], nn.Tanh(), self.last]

    def forward(self, x):
        for item in self.sequence:
            x = item(x)
        return x


@pytest.fixture
def ran(tmp_path):
    def run(module=None, data_set=None, **settings):
        settings = TINY | {"output": str(tmp_path / "runs")} | settings
        return raysync.run(settings, model=module, data=data_set)

    return run


def same(tensors, expected):
    assert tensors.keys() == expected.keys()
    return all(value.equal(expected[key]) for key, value in tensors.items())


# ---- what is kept ----


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model": "fashion-cnn", **IMAGES},
        {"cluster": {"server_shards": 3}},
        {"paradigm": "asp", "update": {"optimizer": "adam", "lr": 0.01}},
        CUT,
    ],
    ids=["", "batch-norm", "shards", "adam", "cut"],
)
def test_the_model_read_back_has_the_accuracy_and_the_loss_of_the_last_evaluation(ran, settings):
    record = ran(**settings)
    module = record.model()
    assert not module.training
    assert measured(module, record) == last_measured(record)
    plain = prepare(record.config).build()
    assert not same(record.state_dict(), plain.state_dict())


def test_tied_frozen_and_other_tensors_are_those_of_the_module(ran):
    record = ran(Zoo, DATA)
    module, initial, tensors = Zoo(), Zoo().state_dict(), record.state_dict()
    kinds, expected = (
        {key: (value.shape, value.dtype) for key, value in each.items()}
        for each in (tensors, initial)
    )
    assert kinds == expected
    assert tensors["first.weight"].equal(tensors["again.weight"])
    for untouched in ("scale", "mask"):
        assert tensors[untouched].equal(initial[untouched])
    assert tensors["norm.num_batches_tracked"] == 12, "those of a worker"
    assert tensors["norm.running_mean"].abs().sum() > 0
    assert record.model(module) is module
    assert module.again.weight is module.first.weight
    assert measured(module, record, DATA) == last_measured(record)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_network_that_was_cut_has_the_names_of_its_author(ran, groups):
    cut = CUT["paradigm"] | {"groups": groups}
    record = ran(InWords, DATA, paradigm=cut, workers=[{"count": 2 * groups}])
    assert record.state_dict().keys() == InWords().state_dict().keys()
    assert record.state_dict()["inner.norm.running_mean"].abs().sum() > 0
    got = measured(record.model(InWords()), record, DATA)
    assert got == pytest.approx(last_measured(record), abs=1e-7)


def test_the_best_is_the_best_evaluation(ran):
    """With a learning rate that is too large, it is not the last; its statistics are its own."""
    settings = {"evaluation": {"marks": 12}, "update": {"lr": 1.0}, "seed": 1}
    record = ran(InWords, DATA, keep="best", **settings)
    evaluations = record.evaluations
    best = evaluations.loc[evaluations.accuracy.idxmax()]
    assert 0 < best.version < evaluations.version.max()
    got = measured(record.model(InWords(), which="best"), record, DATA)
    assert got == pytest.approx((best.accuracy, best.loss), abs=1e-7)
    got = measured(record.model(InWords()), record, DATA)
    assert got == pytest.approx(last_measured(record), abs=1e-7)


def test_a_failed_run_leaves_no_model(engine, ran, tmp_path):
    """Even if the engine had saved it before the run failed."""
    engine.models, engine.every = [SavedModel("final", b"")], 10**6
    engine.lost_after, engine.loss = 2, RunFailed("it broke")
    with pytest.raises(RunFailed):
        ran(workload={"samples": 960})
    assert not list(tmp_path.rglob("*.safetensors"))
    [failed] = (tmp_path / "runs").glob("*/*")
    with pytest.raises(ConfigError, match="failed"):
        raysync.load(failed).model()
    assert ran().model_file().read_bytes() == b""


def test_a_diverged_run_leaves_what_was_evaluated_last(ran):
    record = ran(update={"lr": 1e30})
    assert record.summary["status"] == "diverged"
    got = measured(record.model(), record)
    assert got == pytest.approx(last_measured(record), rel=0, nan_ok=True)


@pytest.mark.parametrize(
    ("settings", "which", "facts"),
    [
        ({"keep": "none"}, "final", "model.safetensors: keep:"),
        ({}, "best", "model-best.safetensors: keep:"),
        ({}, "bets", "'bets' 'best'"),
        ({"timing": "only"}, "final", "model.safetensors"),
    ],
)
def test_what_a_run_does_not_keep(ran, settings, which, facts):
    record = ran(**settings)
    with pytest.raises(ConfigError, match=naming(facts)):
        record.state_dict(which)


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"step": 1}


def test_a_model_that_cannot_be_saved_is_refused_before_the_run():
    odd, extra = nn.Linear(3, 4), Extra(3, 4)
    odd.register_buffer("odd", torch.ones(1, dtype=torch.complex128))
    for module, facts in ((odd, "'odd' torch.complex128"), (extra, "'_extra_state' dict")):
        with pytest.raises(ConfigError, match=naming(f"{facts} keep: none")):
            prepare(config.validate(TINY), module, DATA)
    prepare(config.validate(TINY | {"keep": "none"}), extra, DATA)


# ---- reading it back ----


def test_a_model_of_ones_own_is_imported_only_if_the_record_is_trusted(ran):
    record = raysync.load(ran(model="tests.builders.models:line").path)
    assert record.state_dict().keys() == {"1.weight", "1.bias"}
    with pytest.raises(ConfigError, match=naming("tests.builders.models:line")):
        record.model()
    trusted = raysync.load(record.path, trust=True)
    assert measured(trusted.model(), record) == last_measured(record)


def test_a_model_that_was_an_object_is_filled(ran):
    record = ran(nn.Linear(3, 4), DATA)
    with pytest.raises(ConfigError, match=naming("record.model(module)")):
        record.model()
    assert measured(record.model(nn.Linear(3, 4)), record, DATA) == last_measured(record)
    for other, facts in (
        (nn.Linear(4, 4), "model:"),
        (nn.Linear(3, 4, bias=False), "model bias"),
        (3, "nn.Module int"),
    ):
        with pytest.raises(ConfigError, match=naming(facts)):
            record.model(other)


def test_it_is_built_without_its_data(ran, monkeypatch):
    record = ran()
    monkeypatch.setattr("raysync.training.data.datasets.load", None)
    assert isinstance(record.model(), nn.Sequential)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(b"\xff" * 100),
        lambda file: (file.unlink(), file.mkdir()),
        lambda file: file.unlink(),
        *(
            lambda file, text=text: save_file(load_file(file), file, {OFFERED: text})
            for text in (
                "{",
                "[]",
                '{"input_shape": 3, "classes": 2, "tokens": false}',
                '{"input_shape": [1000000000, 100000], "classes": 2, "tokens": false}',
            )
        ),
        lambda file: save_file({"x": torch.ones(2)}, file),
    ],
)
def test_a_damaged_file_is_a_line(ran, damage):
    record = ran()
    damage(record.model_file())
    with pytest.raises(ConfigError) as raised:
        record.model()
    assert re.search(r"model\.safetensors|model mlp: cannot be built", str(raised.value))
    assert len(str(raised.value).splitlines()) <= 2


# ---- raysync export ----


def export(*arguments):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.mark.parametrize("which", ["final", "best"])
def test_an_exported_file_has_the_tensors(ran, tmp_path, which):
    record = ran(keep="best")
    for suffix, read in ((".safetensors", load_file), (".pt", torch.load), (".pth", torch.load)):
        file = tmp_path / f"model{suffix}"
        assert export(f"file://{record.path}", file, "--which", which).exit_code == 0
        assert same(read(file), record.state_dict(which))
        again = export(record.path, file)
        assert isinstance(again.exception, ConfigError)
        assert tells(again.exception, f"{file}: --force")
        assert export(record.path, file, "--force").exit_code == 0


def test_what_cannot_be_exported(ran, tmp_path):
    record = ran()
    for file, facts in (
        (tmp_path / "folder", "Hugging Face"),
        (tmp_path / "model.onnx", ".safetensors .pt .pth"),
        (tmp_path / "none" / "model.pt", "none"),
        ("/proc/model.pt", "/proc"),
    ):
        assert tells(export(record.path, file).exception, facts)
    best = export(record.path, tmp_path / "a.pt", "--which", "best")
    assert tells(best.exception, "keep: final")
    assert not list(tmp_path.glob("*.pt*"))


def test_a_person_finds_the_file(ran):
    """Below the table of a run, and in its report."""
    record = ran()
    done = CliRunner().invoke(app, ["run", str(record.path / "config.yaml")])
    [line] = [line for line in done.output.splitlines() if line.startswith("Model: ")]
    assert load_file(line.removeprefix("Model: ")).keys() == record.state_dict().keys()
    done = CliRunner().invoke(app, ["report", str(record.path), "--format", "md"])
    assert f"raysync export {record.path} model.safetensors\n" in done.output


def test_equal_models_are_equal_files():
    """Safetensors writes metadata in another order each time, also within a process."""
    tensors = {'a "name"\n': torch.randn(3, 2), "é": torch.tensor([1, 2])}
    metadata = {"format": "pt", OFFERED: '{"tokens": false}', "c": "\u00e9\x01", "b": ""}
    files = {save(tensors, metadata) for _ in range(30)}
    [file] = {in_order(each) for each in files}
    assert {len(each) for each in files} == {len(file)}
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in load(file).items())
