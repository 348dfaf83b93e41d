"""The rules that tools can check: layers, purity, types and lint."""

import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

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


def test_no_modules_import_each_other():
    """Annotations may name a class above: a call knows the type of the backend that issued it."""
    graph = grimp.build_graph("raysync", exclude_type_checking_imports=True)
    TopologicalSorter(
        {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    ).prepare()


def test_public_names_are_there_and_load_no_more_than_they_need():
    assert all(getattr(raysync, name) for name in raysync.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = raysync.nothing
    loads = (
        "import sys; from raysync import Apply, Machine, Paradigm, Push, Release, Roster;"
        " sys.exit(' '.join({'ray', 'torch', 'numpy', 'pandas'} & set(sys.modules)) or None)"
    )
    runs("-c", loads)


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
            set(ROOT.glob("experiments/**/*.yaml"))
            - set(ROOT.glob("experiments/clusters/**/*"))
            - set(ROOT.glob("experiments/**/profiles/*"))
        ),
    ],
    ids=lambda path: path.stem,
)
def test_experiment_files_are_valid(path):
    assert config.load(path).name
