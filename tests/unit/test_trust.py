"""To go on with what somebody else has made: what it names is asked for first, and not imported."""

import json
import shutil
from contextlib import suppress
from types import NoneType
from typing import Annotated, Literal, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from raysync.config import Experiment, Named
from raysync.errors import ConfigError
from raysync.paradigms.class_loading import is_reference, without_imports
from raysync.record.made_here import is_made_here, this_maker
from raysync.record.reader import load
from raysync.record.sweeps import Origin
from raysync.record.trust import check_trusted, elsewhere_in, trusted
from raysync.training.loading import load_task
from tests.builders.files import write
from tests.fakes.engines import SETTINGS, lost

CALLBACK = "import raysync\n\nclass Mine(raysync.Callback):\n    pass\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """With a module of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_of_trust.py").write_text(CALLBACK)


@pytest.fixture
def named(engine):
    """The record of a run that was lost, which names a class in that module."""
    return lost(engine, "runs", callbacks=["mine_of_trust:Mine"])


def copied(record, folder):
    """A copy of a record, as somebody sends it."""
    return shutil.copytree(record, folder / "downloaded" / record.name)


def answer(call, *arguments):
    code, _, err = call(*map(str, arguments))
    return code, err


def test_what_this_folder_has_made_goes_on_and_a_copy_is_asked_for(named, call, tmp_path):
    copy = copied(named, tmp_path / "runs")
    code, err = answer(call, "run", "--resume", copy)
    assert (code, err.count("\n")) == (2, 2), err
    assert "mine_of_trust:Mine" in err
    assert "--trust" in err
    assert answer(call, "run", "--resume", named)[0] == 0
    assert answer(call, "run", "--resume", copy, "--trust")[0] == 0


def test_another_folder_or_machine_has_not_made_it(named, call, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert answer(call, "run", "--resume", named)[0] == 2
    monkeypatch.chdir(tmp_path)
    file = named / "environment.json"
    environment = json.loads(file.read_text())
    for made in ({}, environment["made"] | {"host": "another"}, environment["made"] | {"x": 1}):
        file.write_text(json.dumps(environment | {"made": made}))
        assert answer(call, "run", "--resume", named)[0] == 2
    file.unlink()
    assert answer(call, "run", "--resume", named)[0] == 2


def test_a_record_that_was_moved_is_still_this_folders(named, tmp_path):
    moved = named.rename(tmp_path / "moved")
    assert trusted(load(moved), trust=False).trust


def test_nothing_is_asked_where_no_module_is_named(engine, call, tmp_path):
    copy = copied(lost(engine, "runs"), tmp_path)
    assert answer(call, "run", "--resume", copy)[0] == 0


def test_behind_a_uri_nothing_is_made_here(named, call):
    uri = f"file://{named.absolute()}"
    assert answer(call, "run", "--resume", uri)[0] == 2
    assert answer(call, "run", "--resume", uri, "--trust")[0] == 0


HARM = [
    {"track": [{"name": "wandb", "base_url": "https://elsewhere"}]},
    {"track": "mlflow"},
    {"checkpoint": {"every_s": 1, "output": "s3://elsewhere/runs"}},
    {"task": {"name": "lightning:mine:Module"}},
    {"paradigm": {"name": "decoupled", "sync": "some.module:Class.inner"}},
    {"callbacks": [{"name": "subprocess:Popen", "args": ["true"]}]},
    {"update": {"optimizer": {"name": "a-b:Optimizer"}}},
    {"cluster": {"address": "ray://elsewhere:10001"}},
]


@pytest.mark.parametrize("settings", HARM)
def test_whatever_would_be_imported_or_sent_elsewhere_is_found(engine, tmp_path, settings):
    record = copied(lost(engine, tmp_path / "runs"), tmp_path)
    file = record / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | settings))
    with pytest.raises(ConfigError):
        trusted(load(record), trust=False)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(ConfigError):
        check_trusted(tmp_path / "sweep", trust=False)
    check_trusted(tmp_path / "sweep", trust=True)


@pytest.mark.parametrize("text", ["hf:distilbert", "s3://b/runs", "09:30", "a: b", "x", "timm:r18"])
def test_what_names_no_module(text):
    assert not is_reference(text)


def test_what_stays_on_this_machine_is_not_asked_for():
    here = {"track": [{"name": "tensorboard"}], "cluster": {"address": "auto"}}
    assert not list(elsewhere_in(here))
    here["track"].append({"name": "mlflow"})
    assert len(list(elsewhere_in(here))) == 1
    assert list(elsewhere_in({"settings": {"checkpoint.output": "s3://b"}})), "a path as a key"


PLACES = {
    "a model": lambda name: {"model": {"name": name}},
    "data": lambda name: {"data": {"name": name}},
    "a task": lambda name: {"task": {"name": name}},
    "a paradigm": lambda name: {"paradigm": {"name": name}},
    "a paradigm inside": lambda name: {"paradigm": {"name": "local", "paradigm": {"name": name}}},
    "stages in step": lambda name: {"paradigm": {"name": "decoupled", "sync": name}},
    "callbacks": lambda name: {"callbacks": [{"name": name}]},
    "an optimizer": lambda name: {"update": {"optimizer": {"name": name}}},
    "an optimizer inside": lambda name: {"local": {"optimizer": {"name": name}, "lr": 0.1}},
    "data of a task": lambda name: {
        "task": {"name": "hf:distilbert", "head": "causal-lm", "data": name}
    },
}
SPELLINGS = [
    "planted:Name",
    "planted:1",
    "planted:a b",
    "planted:",
    "planted:Name:Name",
    "planted:Name.1",
    " planted:Name",
    "planted.inner:1",
    "lightning:planted:Name",
    "lightning:planted:1",
    "lightning:lightning:planted:Name",
    "given:Name",
    "hf:planted",
    "timm:planted",
    "torchvision:planted",
]


QUICK = ("a task", "a paradigm inside", "callbacks")


@pytest.mark.parametrize(
    "place", [pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in PLACES]
)
def test_a_planted_module_is_not_imported(engine, call, tmp_path, place):
    """Whatever a stranger's record writes for a name, and wherever; also modules of raysync's own
    words.
    """
    imported = tmp_path / "imported"
    planted = f"open({str(imported)!r}, 'a').write(__name__)\n"
    for name in ("planted", "given"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(planted)
        (tmp_path / name / "inner.py").write_text(planted)
    copy = copied(lost(engine, "runs"), tmp_path)
    file = copy / "config.yaml"
    recorded = yaml.safe_load(file.read_text())
    for spelling in SPELLINGS:
        file.write_text(yaml.safe_dump(recorded | PLACES[place](spelling)))
        assert answer(call, "run", "--resume", copy)[0] == 2, spelling
        answer(call, "report", copy)
        answer(call, "replay", copy)
        answer(call, "export", copy, tmp_path / "exported.safetensors")
        with suppress(ConfigError):
            load(copy).model()
        assert not imported.exists(), spelling


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    pytest.importorskip("transformers")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "gift.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    code = {"AutoConfig": "gift.Config", "AutoModelForCausalLM": "gift.Model"}
    (folder / "config.json").write_text(json.dumps({"model_type": "gift", "auto_map": code}))
    for settings in ({}, {"trust_remote_code": True}, {"auto_map": code}):
        task = {"name": "hf:./folder", "head": "causal-lm", "data": "m:f", "config": settings}
        with pytest.raises((ConfigError, ValueError)), without_imports():
            load_task(Named.model_validate(task)).build_model()
    assert not (tmp_path / "ran").exists()


# Every setting of text, and what a stranger could do with it. A new one is to be put here.
CODE = {
    "callbacks.name",
    "data.name",
    "data.parameters",
    "local.optimizer.name",
    "model.name",
    "paradigm.instead_of",
    "paradigm.name",
    "paradigm.set",
    "paradigms.instead_of",
    "paradigms.name",
    "paradigms.set",
    "task.name",
    "update.optimizer.name",
    "update.phases",
    "sweep.exclude",
    "sweep.grid",
    "sweep.sample",
    "sweep.sample.arguments",
}
ELSEWHERE = {"checkpoint.output", "cluster.address", "track.name"}
READ_ONLY = {"data.data_dir", "init_from", "profile", "published.source"}
WORDS = {
    "cluster.server_label_selector",
    "faults.worker",
    "faults.workers",
    "local.groups.match",
    "name",
    "network.nodes.name",
    "network.nodes.workers",
    "network.phases",
    "network.regions.names",
    "network.regions.server",
    "output",  # the record's own folder, where it is resumed
    "published.note",
    "published.relative_to",
    "published.rows",
    "stop.metric",
    "sweep.metric",
    "sweep.scheduler.name",
    "sweep.search.name",
    "stop.when.metric",
    "sweep.stop.metric",
    "switch_search.target",
    "target.metric",
    "update.groups.match",
    "workers.accelerator_type",
    "workers.fallback_label_selectors",
    "workers.label_selector",
    "workers.name",
    "workers.region",
    "workers.resources",
}


def texts_in(kind, path=""):
    """Yield the settings below a type that may hold text."""
    arguments = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield from texts_in(field.annotation, f"{path}.{name}" if path else name)
    elif get_origin(kind) is Literal or kind in (int, float, bool, None, NoneType, Ellipsis):
        return
    elif arguments and get_origin(kind) is Annotated:
        yield from texts_in(arguments[0], path)
    elif arguments:
        for each in arguments:
            yield from texts_in(each, path)
    else:
        yield path


def test_every_setting_of_text_has_been_thought_of():
    assert set(texts_in(Experiment)) == CODE | ELSEWHERE | READ_ONLY | WORDS


def test_a_comparison(engine, call, tmp_path):
    settings = SETTINGS | {"callbacks": ["mine_of_trust:Mine"], "paradigms": ["bsp", "asp"]}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings))
    engine.lost_after = 35
    assert answer(call, "compare", "tiny.yaml")[0] == 130
    shutil.copytree("runs/tiny", "downloaded")
    code, err = answer(call, "compare", "--resume", "downloaded")
    assert (code, err.count("\n")) == (2, 2), err
    assert "mine_of_trust:Mine" in err
    assert answer(call, "compare", "--resume", "runs/tiny")[0] == 0
    assert answer(call, "compare", "--resume", "downloaded", "--trust")[0] == 0


def sweep(folder, text, overrides=(), settings="{}"):
    """A sweep in a folder: its file, its overrides, and the settings of its trials."""
    Origin("tiny.yaml", text, overrides).write(folder)
    write(folder / "sweep.yaml", settings)
    return folder


@pytest.mark.parametrize(
    ("text", "overrides"),
    [("model: mine:Net", ()), ('model: "os\\x3Asystem"', ()), ("{}", ("model=os:system",))],
)
def test_a_sweep_is_trusted_where_it_was_made_and_its_copy_is_not(tmp_path, text, overrides):
    made = sweep(tmp_path / "made", text, overrides, "model: mine:Net\n")
    check_trusted(made, trust=False)
    copy = shutil.copytree(sweep(tmp_path / "source", text, overrides), tmp_path / "copy")
    with pytest.raises(ConfigError):
        check_trusted(copy, trust=False)


def test_the_trials_of_a_sweep_are_asked_for(tmp_path):
    copy = shutil.copytree(sweep(tmp_path / "plain", "{}"), tmp_path / "copy")
    check_trusted(copy, trust=False)
    (copy / "records" / "00000").mkdir(parents=True)
    note = copy / "records" / "00000" / "trial.yaml"
    write(note, "settings: {paradigm: 'os:system'}\n")
    with pytest.raises(ConfigError):
        check_trusted(copy, trust=False)
    write(note, "settings: {}\n")
    check_trusted(copy, trust=False)


def test_making(tmp_path):
    made = this_maker(tmp_path)
    assert is_made_here(tmp_path, made)
    assert not is_made_here(tmp_path, {})
    assert not is_made_here(tmp_path.parent, made)
    assert not is_made_here(tmp_path, {**made, "folder": None})
