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
from raysync.core.journal import Ended
from raysync.engine.kept_models import SavedModel
from raysync.errors import ConfigError, RunFailed
from raysync.running.run import run_in
from raysync.training.files.model_file import OFFERED, in_order
from raysync.training.preparation import prepare
from tests.builders.messages import naming
from tests.builders.models import last_measured, measured
from tests.builders.virtual import DATA

TINY = {
    "engine": "virtual",
    "batch_size": 4,
    "workers": [{"count": 2}],
    "workload": {"samples": 96},
    "evaluation": {"marks": 3},
    "update": {"lr": 0.1},
}
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
    assert record.state_dict().keys() == plain.state_dict().keys()
    assert any(
        not value.equal(plain.state_dict()[key]) for key, value in record.state_dict().items()
    )


def test_tied_frozen_and_other_tensors_are_those_of_the_module(ran):
    record = ran(Zoo, DATA)
    module, initial, tensors = Zoo(), Zoo().state_dict(), record.state_dict()
    assert {key: (value.shape, value.dtype) for key, value in tensors.items()} == {
        key: (value.shape, value.dtype) for key, value in initial.items()
    }
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
    assert measured(record.model(InWords()), record, DATA) == pytest.approx(
        last_measured(record), abs=1e-7
    )


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


def test_a_failed_run_leaves_no_model(tmp_path):
    """Even if the engine had saved it before the run failed."""

    class Engine:
        places, models = {}, [SavedModel("final", b"")]
        resumes_exactly, rosters = False, {}

        def __init__(self, status):
            self.status = status

        def run(self, *_):
            yield []
            yield [Ended(self.status, 1.0, "it broke" if self.status == "failed" else "")]

    training = prepare(config.validate(TINY | {"output": str(tmp_path)}))
    with pytest.raises(RunFailed):
        run_in(Engine("failed"), training, training.experiment.paradigm)
    assert not list(tmp_path.rglob("*.safetensors"))
    record = run_in(Engine("finished"), training, training.experiment.paradigm)
    assert record.model_file().read_bytes() == b""


def test_the_model_is_uploaded_with_its_record(ran, tmp_path):
    uri = f"file://{tmp_path}/far"
    record = ran(output=uri)
    [file] = (tmp_path / "far").rglob("*.safetensors")
    far = raysync.load(f"file://{file.parent}")
    assert far.path != file.parent
    assert {key: value.tolist() for key, value in far.state_dict().items()} == {
        key: value.tolist() for key, value in record.state_dict().items()
    }


def test_a_diverged_run_leaves_what_was_evaluated_last(ran):
    record = ran(update={"lr": 1e30})
    assert record.summary["status"] == "diverged"
    assert measured(record.model(), record) == pytest.approx(
        last_measured(record), rel=0, nan_ok=True
    )


def test_what_a_run_does_not_keep(ran, tmp_path):
    record = ran(keep="none")
    with pytest.raises(ConfigError, match=naming("model.safetensors: keep:")):
        record.state_dict()
    record = ran()
    with pytest.raises(ConfigError, match=naming("model-best.safetensors: keep:")):
        record.state_dict("best")
    with pytest.raises(ConfigError, match=naming("'bets' 'best'")):
        record.state_dict("bets")
    assert ran(timing="only").summary["status"] == "finished"
    with pytest.raises(KeyboardInterrupt):
        raysync.run(TINY | {"output": str(tmp_path / "stopped")}, watch=interrupted)
    [stopped] = (tmp_path / "stopped").glob("*/*")
    with pytest.raises(ConfigError, match=naming("stopped")):
        raysync.load(stopped).model()


def interrupted(_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [(torch.ones(1, dtype=torch.complex128), "a tensor of torch.complex128"), (None, "dict")],
)
def test_a_model_that_cannot_be_saved_is_refused_before_the_run(tensor, kind):
    class Odd(nn.Linear):
        def __init__(self):
            super().__init__(3, 4)
            if tensor is not None:
                self.register_buffer("odd", tensor)
            else:
                self.get_extra_state = lambda: {"step": 1}

    class Extra(Odd):
        def get_extra_state(self):
            return {"step": 1}

    module = Extra() if tensor is None else Odd()
    key = "_extra_state" if tensor is None else "odd"
    with pytest.raises(ConfigError, match=f"'{key}' is {kind}.\n.*keep: none"):
        prepare(config.validate(TINY), module, DATA)
    if tensor is None:
        prepare(config.validate(TINY | {"keep": "none"}), module, DATA)


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
    with pytest.raises(ConfigError, match=naming("model:")):
        record.model(nn.Linear(4, 4))
    with pytest.raises(ConfigError, match=naming("model bias")):
        record.model(nn.Linear(3, 4, bias=False))
    with pytest.raises(ConfigError, match=naming("nn.Module int")):
        record.model(3)


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
                "3",
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
        expected = record.state_dict(which)
        assert {key: value.tolist() for key, value in read(file).items()} == {
            key: value.tolist() for key, value in expected.items()
        }
        again = export(record.path, file)
        assert isinstance(again.exception, ConfigError)
        assert str(again.exception) == f"{file}: exists already; --force overwrites it."
        assert export(record.path, file, "--force").exit_code == 0


def test_what_cannot_be_exported(ran, tmp_path):
    record = ran()
    for file, why in (
        (tmp_path / "folder", "only a Hugging Face model can be written to a folder"),
        (tmp_path / "model.onnx", "must end in .safetensors or .pt or .pth"),
        (tmp_path / "none" / "model.pt", "there is no folder"),
        ("/proc/model.pt", "cannot be written"),
    ):
        assert why in str(export(record.path, file).exception)
    assert "keep: final" in str(export(record.path, tmp_path / "a.pt", "--which", "best").exception)
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
