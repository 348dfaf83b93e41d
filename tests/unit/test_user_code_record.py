"""What a record says of the code of the user's that a run executed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import raysync
from raysync.record.user_code import user_code
from tests.builders.tasks import Cut

FILES = {
    "shop/__init__.py": "",
    "shop/models.py": "from .layers import width\nfrom . import sub\n",
    "shop/layers.py": "import json, tools.deep\nwidth = 3\n",
    "shop/sub/__init__.py": "",
    "shop/unused.py": "",
    "tools/deep.py": "import numpy\n",
    "rule.py": "import shop.layers\n",
}


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def code(task="shop.models:Net", paradigm="bsp"):
    return user_code([{"task": {"name": task}}], [{"name": paradigm}])


def test_the_files_are_those_that_are_imported_and_are_the_users():
    assert code()["files"] == [
        "shop/__init__.py",
        "shop/layers.py",
        "shop/models.py",
        "shop/sub/__init__.py",
        "tools/deep.py",
    ]
    assert "shop" not in sys.modules, "nothing is imported for that"


@pytest.mark.parametrize("name", FILES)
def test_each_byte_of_these_files_counts_and_no_other(project, name):
    before = code(paradigm="rule:Mine")
    (project / name).write_text(FILES[name] + "# other\n")
    after = code(paradigm="rule:Mine")
    is_used = name != "shop/unused.py"
    assert (before["sha256"] != after["sha256"]) is is_used
    of_task = is_used and name != "rule.py"
    assert (before["task_sha256"] != after["task_sha256"]) is of_task
    of_paradigm = name in ("rule.py", "shop/__init__.py", "shop/layers.py", "tools/deep.py")
    assert (before["paradigm_sha256"] != after["paradigm_sha256"]) is of_paradigm


def test_the_hash_does_not_depend_on_the_place(project, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    before = code()
    project.rename(elsewhere / "moved")
    monkeypatch.syspath_prepend(elsewhere / "moved")
    assert code() == before


@pytest.mark.parametrize("name", ["lightning:shop.models:Net", "shop.models:Net"])
def test_an_adapters_name_stands_before_the_module(name):
    assert code(task=name) == code()


@pytest.mark.parametrize("name", ["timm:resnet18", "torch.nn:Linear", "bsp", "gone.away:Net"])
def test_what_is_not_the_users_is_no_code(name):
    assert code(task=name) is None


def git(folder, *arguments):
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True)


def test_the_commit_and_whether_the_files_are_as_in_it(project):
    assert (code()["commit"], code()["dirty"]) == (None, None)
    git(project, "init", "-q")
    git(project, "add", "shop", "tools")
    git(project, "commit", "-qm", "one")
    first = code()
    assert len(first["commit"]) == 40
    assert first["dirty"] is False, "rule.py is not in the commit, but not used either"
    assert code(paradigm="rule:Mine")["dirty"] is True
    (project / "shop/layers.py").write_text("width = 4\n")
    assert code()["dirty"] is True


def test_without_git_there_is_no_commit(project, monkeypatch):
    monkeypatch.setenv("PATH", str(project))
    assert code()["commit"] is None
    assert code()["sha256"]


def test_a_record_has_it_for_names_and_for_objects(tmp_path):
    settings = {"engine": "virtual", "workload": {"samples": 8}, "batch_size": 4}
    settings["output"] = str(tmp_path)
    named = raysync.run(settings | {"task": "tests.builders.tasks:Cut"}).environment["user_code"]
    given = raysync.run(settings, task=Cut()).environment["user_code"]
    assert named["sha256"] == given["sha256"]
    assert "tests/builders/tasks.py" in given["files"]
    assert "user_code" not in raysync.run(settings).environment


def test_a_task_of_a_script_is_its_file(tmp_path):
    (tmp_path / "script.py").write_text(
        "import raysync, helper\nfrom tests.builders.tasks import Cut\nclass Mine(Cut): pass\n"
        "record = raysync.run({'engine': 'virtual', 'workload': {'samples': 8}, 'batch_size': 4},"
        " task=Mine())\nprint(*record.environment['user_code']['files'])\n"
    )
    (tmp_path / "helper.py").write_text("")
    files = subprocess.check_output(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        text=True,
    )
    assert {"script.py", "helper.py"} <= set(files.split())
