"""The rules that tools can check: layers, purity, types, lint, and what documents say."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import raysync
from raysync import config
from raysync.paradigms import PARADIGMS

ROOT = Path(__file__).parents[2]


def runs(*command):
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff():
    runs("-m", "ruff", "check", ".")
    runs("-m", "ruff", "format", "--check", ".")


def test_mypy():
    runs("-m", "mypy", "--cache-dir", ".mypy_cache")


def test_layers_and_purity():
    runs(
        "-c",
        "import sys; from importlinter.cli import lint_imports_command;"
        " sys.exit(lint_imports_command())",
    )


def test_public_names_are_sorted_and_there():
    assert raysync.__all__ == sorted(raysync.__all__)
    assert set(raysync.__all__) == set(raysync._HOMES)
    assert all(getattr(raysync, name) for name in raysync.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = raysync.nothing


@pytest.mark.parametrize("name", PARADIGMS)
def test_a_paradigm_states_its_source_and_has_its_tests(name):
    doc, module = PARADIGMS[name].__doc__, PARADIGMS[name].__module__.rpartition(".")[2]
    assert "Source:" in doc
    assert (ROOT / f"tests/paper/test_{module}.py").is_file()
    assert name in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "path",
    [
        ROOT / "raysync/comparison.yaml",
        *sorted(
            set(ROOT.glob("experiments/**/*.yaml")) - set(ROOT.glob("experiments/clusters/**/*"))
        ),
    ],
    ids=lambda path: path.stem,
)
def test_experiment_files_are_valid(path):
    assert config.load(path).name


def test_every_setting_of_an_experiment_is_in_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [name for name in config.Experiment.model_fields if f"`{name}`" not in readme]


def test_the_readme_file_example_is_valid():
    blocks = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert blocks
    for block in blocks:
        config.validate(yaml.safe_load(block))


def test_every_yaml_block_of_the_readme_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    for block in blocks:
        settings = yaml.safe_load(block) | {"engine": "virtual", "workload": {"samples": 640}}
        assert raysync.run(settings).summary["status"] == "finished"


def test_the_readme_paradigm_runs(tmp_path, monkeypatch):
    """The paradigm of the README's section on writing one's own is a real one, in at most
    30 lines.
    """
    from tests.driving import Drive

    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    [text] = [block for block in blocks if "@dataclass" in block]
    assert len(text.splitlines()) <= 30
    (tmp_path / "readme_paradigm.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("readme_paradigm")
    [name] = [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == "readme_paradigm"
    ]
    drive = Drive(raysync.paradigms.make(f"readme_paradigm:{name}"), "a#1", "b#1", "c#1")
    for _ in range(50):
        drive.push(next(iter(drive.roster.computing)))
    assert drive.roster.applied > 30
