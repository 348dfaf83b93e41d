"""The lab book: its pages say what the committed results say, and its sweeps can be run."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import labbook
import labtables
import pandas as pd
import pytest
import yaml
from trials import TUNING_SEED

import raysync
from raysync import config
from raysync.record.sweeps import load_sweep
from raysync.results.statistics import estimate, paired_ratio
from raysync.tuning.grid import points
from raysync.tuning.sweep_run import plan
from tests.builders.messages import naming
from tests.builders.reports import BASE
from tests.builders.sweeps import Trial, write_sweep

EXPERIMENTS = labbook.HERE
FILES = sorted(set(EXPERIMENTS.glob("*/*.yaml")) - set(EXPERIMENTS.glob("clusters/*")))
PLANNED = [file for file in FILES if config.load(file).sweep is not None]
TRIALS = {
    file: labtables.Results(file.parent).sweeps.trials[file.stem]
    for file in PLANNED
    if file.stem in labtables.Results(file.parent).sweeps.index
}
"""Sweep with results -> how many trials it has."""
PAGES = [folder / "README.md" for folder in labbook.entries()]
RESULTS = [file for folder in labbook.entries() for file in folder.glob("results/*.csv")]


@pytest.fixture(scope="module")
def pages():
    return labbook.pages()


def test_every_page_is_what_the_committed_results_give_byte_for_byte(pages):
    assert pages.keys() >= {EXPERIMENTS / "README.md", *PAGES}
    for page, text in pages.items():
        assert page.read_bytes() == text.encode(), f"{page}: run python experiments/labbook.py"


def test_a_page_names_its_template_and_has_no_mark_left(pages):
    for page, text in pages.items():
        assert not labbook.MARK.search(text), page
        assert page == labbook.FIRST_PAGE or text.startswith(f"<!-- Written from {page.name}.in: ")
    templates = set(map(labbook.template_of, pages)) | {labbook.FIRST_TABLE}
    assert set(EXPERIMENTS.glob("**/*.md.in")) == templates - {
        labbook.template_of(labbook.FIRST_PAGE)
    }


def test_what_is_typed_into_the_table_of_the_first_page_does_not_stay():
    page, table = "Text:\n\n| a |\n|---|\n| 9.99 |\n\nMore.\n", "| a |\n|---|\n| 1 |\n"
    assert labbook.with_table(page, table) == page.replace("9.99", "1")
    with pytest.raises(AssertionError, match="no table begins with"):
        labbook.with_table("Text.\n", table)


def test_a_mark_that_nothing_fills_is_noticed():
    with pytest.raises(KeyError, match="typo"):
        labbook.filled("{{table: typo}}", {}, {})


@pytest.mark.parametrize(
    "name", ["architectures", "balanced", "hybrid-ps", "lagtuner", "quickstart", "sync-switch"]
)
def test_every_table_is_on_its_page(name):
    folder = EXPERIMENTS / name
    templates = "".join(template.read_text() for template in folder.glob("*.md.in"))
    for table in labbook.tables_of(folder).tables(labtables.Results(folder)):
        assert f"{{{{table: {table}}}}}" in templates


def test_the_index_lists_every_folder():
    index = (EXPERIMENTS / "README.md").read_text()
    for folder in EXPERIMENTS.iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert f"]({folder.name}" in index, folder.name


VERDICTS = {"reproduces", "partly", "does not", "undecided", "-", "holds (ours)", "partly (ours)"}


def test_a_verdict_is_one_of_a_few():
    assert {entry["verdict"] for entry in labbook.entries().values()} <= VERDICTS


PROSE = re.compile(r"^(?!\||    |```|!\[|<!--).*$", re.MULTILINE)
MOST_WORDS, MOST_ROWS = 400, 12


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_page_begins_with_its_answer_and_is_short(page):
    text = page.read_text()
    answer = labbook.answer(text)
    assert 1 <= len(re.findall(r"[a-z)%]\.(?: |$)", answer)) <= 2, answer
    assert not answer.startswith(("Claim", "Source", "Command")), answer
    assert len(answer.split()) <= 80
    assert sum(len(line.split()) for line in PROSE.findall(text)) <= MOST_WORDS
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) <= 1
    assert all(len(table.splitlines()) <= MOST_ROWS + 2 for table in tables)


# ---- sweeps and their results ----


@pytest.mark.parametrize("file", TRIALS, ids=lambda file: file.stem)
def test_every_sweep_has_its_results(file):
    experiment = config.load(file)
    trials = labtables.Results(file.parent).trials(file.stem)
    planned = points(experiment.sweep, experiment.seed, str(file))
    assert len(planned) == len(trials) == TRIALS[file]
    assert set(trials.status) == {"finished"}
    for number, point in enumerate(planned):
        assert trials.trial[number] == number
        assert {key: trials[f"config/{key}"][number] for key in point} == point


@pytest.mark.parametrize(
    "file", [file for file in TRIALS if TRIALS[file] < 20], ids=lambda file: file.stem
)
def test_a_sweep_can_be_planned(file, tmp_path):
    """Each trial is an experiment; the larger sweeps vary the same settings, and planning them
    takes seconds.
    """
    assert plan(file, [f"output={tmp_path}"]).count == TRIALS[file]


def test_a_sweep_that_has_not_run_is_called_so_on_its_page(pages):
    for file in set(PLANNED) - set(TRIALS):
        assert re.search(rf"Not run yet: .*`{file.name}`", pages[file.parent / "notes.md"]), file


def test_results_are_of_files_that_are_there():
    for file in RESULTS:
        name = file.name.partition(".")[0]
        assert name == "sweeps" or (file.parents[1] / f"{name}.yaml").is_file()


def test_only_finished_runs_of_declared_seeds_count_in_what_is_committed():
    """Of sweeps, of what scripts wrote, and of the pages that make themselves."""
    for file in RESULTS:
        rows = pd.read_csv(file)
        name = file.stem.partition(".")[0]
        names = ["overlap", "overlap-emulated"] if file.stem == "overlap" else [name]
        if "seed" in rows and file.stem.endswith(".rates"):
            assert set(rows.seed) == {TUNING_SEED}, file
        elif "seed" in rows:
            experiments = [config.load(file.parents[1] / f"{name}.yaml") for name in names]
            assert all(set(rows.seed) == labtables.seeds_of(each) for each in experiments), file
        assert set(rows.get("status", ())) <= {"finished", "diverged"}, file


# ---- which runs count ----


def record(label, seed, status="finished", day=1):
    """A record as far as it matters for whether it counts."""
    return SimpleNamespace(
        path=Path(f"2026010{day}-{label}-{seed}-{status}"),
        summary={"status": status},
        config=SimpleNamespace(paradigm=SimpleNamespace(label=label), seed=seed),
    )


def test_runs_that_are_not_finished_or_not_declared_do_not_count(monkeypatch):
    """A third run with an undeclared seed once stood in the table of two."""
    declared = config.validate({"paradigms": ["bsp", "asp"], "seeds": [0, 1]})
    counting = [record("asp", 1), record("bsp", 0, day=2)]
    others = [
        record("bsp", 0),
        record("bsp", 2),
        record("ssp(staleness=3)", 0),
        record("asp", 0, "unfinished"),
        record("asp", 0, "failed"),
        record("bsp", 1, "diverged"),
        record("bsp", 0, "stopped", day=3),
    ]
    there = {one.path: one for one in (*others, *counting)}
    monkeypatch.setattr(labtables, "load", there.get)
    found = labtables.records_of(there, declared)
    assert {one.path for one in found} == {one.path for one in counting}
    assert labtables.seeds_of(config.validate({"seed": 7})) == {7}
    statuses = ["finished", "diverged", "finished", "failed", "unfinished"]
    rows = pd.DataFrame({"seed": [0, 1, 2, 0, 1], "status": statuses})
    assert list(labtables.counted(rows, declared).index) == [0, 1]
    with pytest.raises(ValueError, match=naming("stopped")):
        labtables.finished(others[-1])


def test_a_script_leaves_out_what_is_not_declared(tmp_path, monkeypatch):
    """The script of the runs on Ray, given records of two seeds of which its file declares one."""
    spec = spec_from_file_location("overlap_of_decoupled", EXPERIMENTS / "decoupled/overlap.py")
    overlap = module_from_spec(spec)
    spec.loader.exec_module(overlap)
    file = BASE | {"name": "both", "paradigms": ["bsp", "asp"], "seeds": [1]}
    (tmp_path / "overlap.yaml").write_text(yaml.safe_dump(file))
    (tmp_path / "overlap-emulated.yaml").write_text(yaml.safe_dump(file | {"name": "nothing"}))
    settings = {"timing": "only", "target": None, "seeds": [], "output": str(tmp_path)}
    for seed in (0, 1):
        for paradigm in file["paradigms"]:
            raysync.run(file | settings | {"paradigm": paradigm, "seed": seed})
    monkeypatch.setattr(overlap, "HERE", tmp_path)
    monkeypatch.setattr(overlap, "rows", lambda one, name: [{"seed": one.summary["seed"]}])
    assert list(overlap.collected(tmp_path).seed) == [1, 1]


# ---- what is taken over ----

SEEDS = (0, 1)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, torch_of_one_thread):
    """The last trial has a seed that the file does not declare."""
    grid = {"paradigm": ["lagtuner", "asp"], "seed": list(SEEDS)}
    trials = [
        Trial({"paradigm": name, "seed": seed}) for name in grid["paradigm"] for seed in SEEDS
    ]
    trials.append(Trial({"paradigm": "asp", "seed": 7}))
    folder = tmp_path_factory.mktemp("sweep")
    return load_sweep(write_sweep(folder, BASE | {"sweep": {"grid": grid}}, trials))


def test_what_is_taken_over_from_a_sweep_gives_the_same_numbers(sweep, tmp_path):
    (tmp_path / "tiny.yaml").write_text((sweep.path / "sweep.yaml").read_text())
    for _ in range(2):  # the second takes the place of the first
        labbook.copy(sweep, sweep.experiment, tmp_path / "results", "tiny")
    results = labtables.Results(tmp_path)
    trials, curves = results.trials("tiny"), results.curves("tiny")
    assert results.sweeps.trials.to_dict() == {"tiny": 4}
    assert set(trials.trial) == set(curves.trial) == {0, 1, 2, 3}
    theirs = sweep.table.set_index("trial").seconds
    ours, asp = (trials[trials["config/paradigm"] == name] for name in ("lagtuner", "asp"))
    seconds = dict(zip(SEEDS, theirs[:2], strict=True)), dict(zip(SEEDS, theirs[2:4], strict=True))
    expected = estimate(list(seconds[0].values())).mean, paired_ratio(*seconds).mean
    assert labtables.mean(ours, "seconds").mean == pytest.approx(expected[0], rel=1e-5)
    assert labtables.ratio(ours, asp, "seconds").mean == pytest.approx(expected[1], rel=1e-5)
    for trial in trials.trial:
        accuracy = sweep.records[trial].evaluations.accuracy
        assert list(curves[curves.trial == trial].accuracy) == pytest.approx(accuracy, rel=1e-5)


def test_repeats_differ_in_their_seed_alone():
    with pytest.raises(AssertionError, match="not repeats"):
        labtables.by_seed(pd.DataFrame({"seed": [0, 0], "seconds": [1.0, 2.0]}), "seconds")


def test_the_newest_sweep_that_was_not_interrupted_is_taken(sweep, tmp_path):
    for day, status in ((1, None), (2, None), (3, "stopped")):
        folder = tmp_path / f"2026010{day}-000000-sweep-abcd"
        folder.mkdir()
        (folder / "sweep.yaml").write_text((sweep.path / "sweep.yaml").read_text())
        table = sweep.table.assign(status=status or sweep.table.status)
        table.to_parquet(folder / "sweep.parquet")
    assert labbook.newest(tmp_path).path.name.startswith("20260102")
    assert labbook.newest(tmp_path / "nothing") is None
