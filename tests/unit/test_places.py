"""Places where nothing can be written: each command says so at once, in a line, and leaves
nothing.
"""

from pathlib import Path

import pytest

from raysync.errors import ConfigError
from raysync.record import storage
from tests.builders.files import write
from tests.builders.messages import naming, tells

LONG = 300 * "x"  # a file system has 255 bytes
IMPOSSIBLE = ["file", "file/below", "loop/below", "dangling", LONG]
HAS_PROC = Path("/proc/self").exists()  # the permissions there allow what cannot be done
if HAS_PROC:
    IMPOSSIBLE.append("/proc/nope")
FILE = """
name: mine
paradigm: {name: sync-switch, first: bsp, then: asp}
switch_search: {target: final_accuracy}
sweep: {grid: {seed: [0, 1]}}
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    write(tmp_path / "mine.yaml", FILE)
    before = set(tmp_path.iterdir())
    yield tmp_path
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("place", IMPOSSIBLE)
def test_a_folder_that_cannot_be_made(world, place):
    with pytest.raises(ConfigError, match=naming(f"here: {place}")) as refused:
        storage.check(place, "here")
    assert len(str(refused.value).splitlines()) == 1


def test_a_user_that_there_is_not(world):
    with pytest.raises(ConfigError, match=naming("output: ~nobody_has_this_name")):
        storage.check("~nobody_has_this_name/runs")


@pytest.mark.parametrize("place", ["new", "new/below", ".", "none/../new"])
def test_a_folder_that_can_be_made_is_not_made_yet(world, place):
    storage.check(place)


@pytest.mark.parametrize("setting", ["output", "checkpoint.output"])
@pytest.mark.parametrize("command", ["run", "compare", "sweep", "switch-search"])
@pytest.mark.parametrize("place", [IMPOSSIBLE[1], IMPOSSIBLE[-1]])
def test_records_are_refused_before_ray_starts(call, world, command, setting, place):
    more = [] if setting == "output" else ["--set", "checkpoint.every_s=9"]
    code, out, err = call(command, "mine.yaml", *more, "--set", f"{setting}={place}")
    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert tells(line, f"{setting}: {place}")


@pytest.mark.parametrize("folder", ["file", *["/proc"] * HAS_PROC])
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["calibrate"], "profile.yaml"),
        (["whatif", "steps.csv", "-o"], "page.html"),
        (["report", "runs", "-o"], "page.html"),
        (["report", "runs", "--format", "png", "-o"], "pictures"),
        (["advise", "mine.yaml", "-o"], "advice"),
    ],
)
def test_results_are_refused_before_they_are_computed(call, world, arguments, name, folder):
    code, out, err = call(*arguments, f"{folder}/{name}")
    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert tells(line, str(folder))
