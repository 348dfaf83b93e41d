"""What documents say: links lead somewhere, blocks of code are right, and guides are complete."""

import ast
import re
from configparser import ConfigParser
from dataclasses import fields
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
import yaml

import raysync
from raysync import config
from raysync.paradigms import PARADIGMS, PRESETS
from raysync.record.measures import Measures
from raysync.record.push_rows import PushRow
from tests import settings_reference

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDES = sorted(ROOT.glob("raysync/*/README.md"))
SETTINGS = ROOT / "raysync/config/README.md"
REFERENCE = ROOT / "raysync/config/REFERENCE.md"
DOCUMENTS = [
    README,
    *sorted(
        chain.from_iterable(ROOT.glob(f"{top}/**/README.md") for top in ("dashboards", "tests"))
    ),
    *sorted(ROOT.glob("experiments/**/*.md")),
    *sorted(ROOT.glob("raysync/**/*.md")),
]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
COLUMNS = 100


def name_of(path):
    return str(path.relative_to(ROOT))


def text_of(path):
    return path.read_text(encoding="utf-8")


def prose_of(path):
    """The text without its blocks of code."""
    return FENCE.sub("", text_of(path))


def blocks_of(path, language):
    return [block for kind, block in FENCE.findall(text_of(path)) if kind == language]


def anchors_of(path):
    headings = re.findall(r"^#+ (.*)$", prose_of(path), re.MULTILINE)
    anchors = [
        settings_reference.anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each))
        for each in headings
    ]
    assert len(set(anchors)) == len(anchors), f"{name_of(path)}: two headings have one anchor"
    return set(anchors)


# ---- the first page ----


def test_the_first_page_stays_short():
    lines = text_of(README).splitlines()
    assert len(lines) <= 170, "what is a manual belongs into the guide of its folder"


@pytest.mark.parametrize("path", [README, *GUIDES, REFERENCE], ids=name_of)
def test_prose_fits_into_the_columns(path):
    too_long = [
        line
        for line in prose_of(path).splitlines()
        if len(line) > COLUMNS and not line.startswith("|")
    ]
    assert not too_long


def test_the_first_page_begins_with_two_commands_that_work():
    [first, second] = blocks_of(README, "sh")[0].splitlines()
    assert first == "pip install -e . && raysync compare"
    assert second == "pip install -e '.[test]' && pytest"


def test_the_paradigm_of_the_first_page_passes_its_test(tmp_path, monkeypatch):
    """It is a real one, in at most 30 lines, and its test is a real one."""
    [paradigm] = [block for block in blocks_of(README, "python") if "@dataclass" in block]
    [test] = [block for block in blocks_of(README, "python") if "def test_" in block]
    assert len(paradigm.splitlines()) <= 30
    assert len(test.splitlines()) == 3
    (tmp_path / "my_paradigm.py").write_text(paradigm)
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("my_paradigm")
    assert raysync.paradigms.make("my_paradigm:EveryOther") == module.EveryOther(share=0.5)
    namespace = {}
    exec(test, namespace)
    namespace["test_my_paradigm"]()


def test_the_first_run_in_python_lasts_as_long_as_its_steps(tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    [example] = [block for block in blocks_of(README, "python") if "raysync.run(" in block]
    names = {}
    exec(example, names)
    assert not recwarn.list
    slowest = max(group.step_s for group in names["record"].config.workers)
    steps = names["record"].pushes.groupby("worker").size().max()
    assert names["record"].summary["seconds"] >= steps * slowest
    assert names["record"].summary["wait_fraction"] > 0


@pytest.mark.parametrize("path", [README, SETTINGS], ids=name_of)
def test_experiments_of_the_first_pages_train(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(path, "yaml")
    assert blocks
    for block in blocks:
        settings = yaml.safe_load(block) | {"engine": "virtual", "workload": {"samples": 640}}
        assert raysync.run(settings).summary["status"] == "finished"


# ---- all documents ----


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_link_leads_somewhere(path):
    for target in LINK.findall(prose_of(path)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{name_of(path)}: {target}: there is no such file"
        assert there.is_relative_to(ROOT), f"{name_of(path)}: {target} leads out of the repository"
        if anchor:
            assert anchor in anchors_of(there), f"{name_of(path)}: {target}: no such heading"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_files_that_are_named_exist(path):
    named = re.findall(
        r"(?<![\w./-])(?:raysync|tests|experiments|dashboards)/[\w/+.-]+\.(?:py|yaml|md)\b",
        text_of(path),
    )
    assert not [file for file in named if "NAME" not in file and not (ROOT / file).exists()]


@pytest.mark.parametrize("path", GUIDES, ids=name_of)
def test_the_first_page_leads_to_every_guide(path):
    assert f"({name_of(path)})" in text_of(README)


@pytest.mark.parametrize("path", [README, *GUIDES, REFERENCE], ids=name_of)
def test_experiments_in_documents_are_valid(path):
    for block in blocks_of(path, "yaml"):
        config.validate(yaml.safe_load(block), source=name_of(path))


@pytest.mark.parametrize("path", [README, *GUIDES], ids=name_of)
def test_python_in_documents_compiles_and_whole_programs_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(path, "python"):
        program = compile(ast.parse(block, name_of(path)), name_of(path), "exec")
        if block.startswith("import raysync\n"):
            exec(program, {})


# ---- guides are complete ----


def test_the_drawing_of_the_layers_is_that_of_the_lint():
    """The same packages, and none is drawn above one that may import it."""
    _, drawing = blocks_of(ROOT / "raysync/engine/README.md", "")
    drawn = re.findall(r"\w+", " ".join(line[:21] for line in drawing.splitlines()))
    lint = ConfigParser(interpolation=None)
    lint.read(ROOT / "setup.cfg", encoding="utf-8")
    layers = lint["importlinter:contract:layers"]["layers"].split("\n")
    floor = {
        name: number
        for number, layer in enumerate(layers)
        for name in re.findall(r"raysync\.(\w+)", layer)
        if (ROOT / "raysync" / name).is_dir()
    }
    assert sorted(drawn) == sorted(floor)
    assert [floor[name] for name in drawn] == sorted(floor.values())


def test_the_reference_of_settings_is_that_of_the_models():
    assert settings_reference.main(["--check"]) == 0, "run python -m tests.settings_reference"


def test_every_setting_says_what_it_means():
    text = settings_reference.reference()
    assert "|  |" not in text
    assert all(f"| `{name}` |" in text for name in config.Experiment.model_fields)


def test_every_parameter_of_a_paradigm_is_in_its_guide():
    text = text_of(ROOT / "raysync/paradigms/README.md")
    for name, cls in PARADIGMS.items():
        [row] = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        assert all(f"`{each.name}`" in row for each in fields(cls) if each.init), name
    assert all(f"`{name}`" in text for name in PRESETS)


def test_every_column_and_key_of_a_record_is_in_its_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = text_of(ROOT / "raysync/record/README.md")
    settings = {"engine": "virtual", "timing": "only", "workload": {"samples": 640}}
    record = raysync.run(settings)
    names = [
        *PushRow.__struct_fields__,
        *record.evaluations.columns,
        *record.summary,
        *Measures(1).summary(),
        *(path.name for path in record.path.iterdir()),
        *record.summary["per_worker"][0],
    ]
    assert not [name for name in names if f"`{name}`" not in text]
