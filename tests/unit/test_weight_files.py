"""Weights to start from: in each format that people have, under any name, and without code."""

import json
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from raysync import config
from raysync.errors import ConfigError
from raysync.training.files.weight_files import read_any
from raysync.training.preparation import prepare
from tests.builders.messages import naming
from tests.builders.tasks import Sums, SumUp

PART = "model-{:05d}-of-00003.{}"


@pytest.fixture
def weights():
    """Of a module with several types, a shared tensor, and a number."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2).bfloat16())
    return net.state_dict()


def legacy(content, file):
    torch.save(content, file, _use_new_zipfile_serialization=False)


def save_parts(weights, folder, suffix="safetensors"):
    """Deal the weights out to three files; return name -> file."""
    places = {}
    for number in range(3):
        part = dict(list(weights.items())[number::3])
        file = PART.format(number + 1, suffix)
        (save_file if suffix == "safetensors" else torch.save)(part, folder / file)
        places |= dict.fromkeys(part, file)
    return places


def save_index(weights, folder, suffix="safetensors", name="model.safetensors.index.json"):
    index = {"metadata": {"total_size": 1}, "weight_map": save_parts(weights, folder, suffix)}
    (folder / name).write_text(json.dumps(index, indent=2))
    return folder / name


def same(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


# ---- what is read ----


@pytest.mark.parametrize("name", ["w", "w.th", "w.pth.tar", "w.pt", "w.bin", "w.safetensors"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("save", [torch.save, legacy, save_file])
def test_a_format_is_told_by_its_content(save, nested, name, weights, tmp_path):
    """The oracle is torch: what was saved."""
    if nested and save is save_file:
        save(weights, tmp_path / name, {"format": "pt"})
    else:
        save({"epoch": 3, "state_dict": weights} if nested else weights, tmp_path / name)
    assert same(read_any(tmp_path / name, "init_from"), weights)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
@pytest.mark.parametrize("index", [None, "model.safetensors.index.json", "other.index.json"])
def test_parts_are_joined(index, suffix, weights, tmp_path):
    if index is None:
        save_parts(weights, tmp_path, suffix)
    else:
        path = save_index(weights, tmp_path, suffix, index)
        assert same(read_any(path, "init_from"), weights)
    assert same(read_any(tmp_path, "init_from"), weights)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_has_its_weights_under_the_usual_name(name, weights, tmp_path):
    (save_file if name.endswith("safetensors") else torch.save)(weights, tmp_path / name)
    (tmp_path / "config.json").write_text("{}")
    assert same(read_any(tmp_path, "init_from"), weights)


def test_parameters_are_tensors(weights, tmp_path):
    net = nn.Linear(3, 2)
    torch.save(dict(net.named_parameters()), tmp_path / "w.pt")
    assert same(read_any(tmp_path / "w.pt", "init_from"), net.state_dict())


# ---- what is refused ----


class Harmful:
    def __reduce__(self):
        return print, ("the pickle was executed",)


@pytest.mark.parametrize("name", ["w", "w.safetensors", "w.ckpt"])
@pytest.mark.parametrize("save", [torch.save, legacy])
@pytest.mark.parametrize("content", [Harmful(), {"a": torch.ones(2), "b": Harmful()}])
def test_code_is_not_run(content, save, name, tmp_path, capsys):
    save(content, tmp_path / name)
    with pytest.raises(ConfigError, match=naming(f"init_from {name} print")) as error:
        read_any(tmp_path / name, "init_from")
    assert len(str(error.value).splitlines()) == 1
    assert "executed" not in capsys.readouterr().out


def test_a_whole_module_needs_code(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=naming("torch.nn.modules.linear.Linear")):
        read_any(tmp_path / "w.pt", "init_from")


@pytest.mark.parametrize("save", [torch.save, legacy, save_file])
@pytest.mark.parametrize("kept", [0, 1, 7, 40, 200, -1])
def test_a_file_that_is_cut_off_is_told_so(save, kept, weights, tmp_path):
    save(weights, tmp_path / "w")
    (tmp_path / "w").write_bytes((tmp_path / "w").read_bytes()[:kept])
    with pytest.raises(ConfigError, match=naming("init_from: w:")) as error:
        read_any(tmp_path / "w", "init_from")
    assert len(str(error.value).splitlines()) <= 2
    assert not str(error.value).endswith("().")


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n", "Git LFS"),
        (b"\x89HDF\r\n\x1a\n", "format"),
        (b"\x80\x04\x95", "pickle"),
        (b"", "empty"),
        (b"{}", "weight_map"),
        (b"[1]", "format"),
        (b'{"weight_map": {"a": "../outside.safetensors"}}', "weight_map"),
        (b'{"weight_map": {"a": 3}}', "weight_map"),
        (b'{"weight_map": {"a": "none.safetensors"}}', "none.safetensors"),
        (b'{"weight_map": {"a": "w.index.json"}}', "w.index.json"),
        (b'{"weight_map": ', "w.index.json"),
    ],
)
def test_other_contents_are_named(content, facts, tmp_path):
    file = tmp_path / "w.index.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=naming(f"init_from: {facts}")) as error:
        read_any(file, "init_from")
    assert len(str(error.value).splitlines()) <= 2


def test_a_packed_archive_is_not_unpacked(weights, tmp_path):
    torch.save(weights, tmp_path / "w")
    with (
        zipfile.ZipFile(tmp_path / "w") as plain,
        zipfile.ZipFile(tmp_path / "z", "w", 8) as packed,
    ):
        for entry in plain.namelist():
            packed.writestr(entry, plain.read(entry))
    with pytest.raises(ConfigError, match=naming("init_from:")):
        read_any(tmp_path / "z", "init_from")


@pytest.mark.parametrize("under", ["model", "model_state_dict", "generator"])
def test_weights_under_another_name_are_hinted_at(under, weights, tmp_path):
    others = {"epoch": 3, "optimizer": {"state": {}}, "mean": torch.ones(2)}
    torch.save(others | {under: weights}, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=naming(f"state_dict '{under}'")):
        read_any(tmp_path / "w.pt", "init_from")


def test_parts_that_are_missing_or_overlap_are_named(weights, tmp_path):
    index = save_index(weights, tmp_path)
    save_file({"0.weight": weights["0.weight"]}, tmp_path / PART.format(2, "safetensors"))
    with pytest.raises(ConfigError, match=naming("0.weight")):
        read_any(index, "init_from")
    save_file({}, tmp_path / PART.format(2, "safetensors"))
    with pytest.raises(ConfigError, match=naming("lack 0.bias")):
        read_any(index, "init_from")
    index.unlink()
    (tmp_path / PART.format(2, "safetensors")).unlink()
    with pytest.raises(ConfigError, match=naming("2-of-3")):
        read_any(tmp_path, "init_from")


def test_a_folder_without_weights_or_with_two_is_told(weights, tmp_path):
    with pytest.raises(ConfigError, match=naming("no weights model.safetensors")):
        read_any(tmp_path, "init_from")
    for name in ("a.index.json", "b.index.json"):
        save_index(weights, tmp_path, name=name)
    with pytest.raises(ConfigError, match=naming("a.index.json b.index.json")):
        read_any(tmp_path, "init_from")


# ---- names that differ by a wrapper ----


class Within(nn.Module):
    """As torch.compile returns it, which imports for seconds."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module

    def forward(self, x):
        return self._orig_mod(x)


class Compiled(Sums):
    def build_model(self):
        return Within(SumUp(self.width))


@pytest.mark.parametrize(
    ("prefix", "facts"),
    [
        ("module.", "inner.weight 'module' DistributedDataParallel"),
        ("_orig_mod.", "inner.weight '_orig_mod' torch.compile"),
        ("_orig_mod.module.", "inner.weight 'module' DistributedDataParallel"),
        ("inner._orig_mod.", "inner.weight '_orig_mod' torch.compile"),
        ("", "_orig_mod.inner.weight model torch.compile"),
        ("model.", "model.inner.weight"),
    ],
)
def test_a_wrapper_in_the_names_of_the_file_or_the_model_is_hinted_at(prefix, facts, tmp_path):
    """The model is compiled where the file's names have no prefix."""
    state = SumUp().state_dict()
    if "inner" in prefix:
        state = {name.replace("inner.", prefix): each for name, each in state.items()}
    else:
        state = {prefix + name: each for name, each in state.items()}
    torch.save(state, tmp_path / "w.pt")
    settings = {"engine": "virtual", "init_from": str(tmp_path / "w.pt"), "batch_size": 4}
    with pytest.raises(ConfigError, match=naming(f"init_from: {facts}")) as error:
        prepare(config.validate(settings), task=Sums() if prefix else Compiled())
    assert len(str(error.value).splitlines()) == 1
    is_known = prefix != "model."
    assert any(word in str(error.value) for word in ("Parallel", "compile")) == is_known
