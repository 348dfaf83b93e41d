"""The lab book: its pages say what the committed results say, its sweeps can be run, its clocks are
what they claim.
"""

import re
import shutil
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from raysync import config
from raysync.record.sweeps import load_sweep
from raysync.results.statistics import Estimate, estimate, paired_ratio
from raysync.training.models.builtin import ModelPlan
from raysync.training.trials.cost import on_random_samples, step_flops
from tests.builders.messages import naming
from tests.builders.reports import BASE, DIVERGED, LOST, PARADIGMS

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import labbook  # noqa: E402
import labtables  # noqa: E402
from trials import TUNING_SEED  # noqa: E402

FILES = sorted(set(EXPERIMENTS.glob("*/*.yaml")) - set(EXPERIMENTS.glob("clusters/*")))
PLANNED = [file for file in FILES if config.load(file).sweep is not None]
SWEEPS = [file for file in PLANNED if file.stem in labtables.Results(file.parent).sweeps.index]
LAGTUNER, SYNC_SWITCH = EXPERIMENTS / "lagtuner", EXPERIMENTS / "sync-switch"
BALANCED = EXPERIMENTS / "balanced"
"""Sweeps whose page is about that, too."""


@pytest.fixture(scope="module")
def pages():
    return labbook.pages()


def test_every_page_is_what_the_committed_results_give_byte_for_byte(pages):
    assert {page.parent.name for page in pages} >= {
        "lagtuner",
        "quickstart",
        "architectures",
        "hybrid-ps",
        "sync-switch",
        "experiments",
    }
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


def test_every_table_is_on_its_page():
    for folder in (
        LAGTUNER,
        SYNC_SWITCH,
        EXPERIMENTS / "quickstart",
        EXPERIMENTS / "architectures",
        EXPERIMENTS / "hybrid-ps",
        BALANCED,
    ):
        for name in labbook.tables_of(folder).tables(labtables.Results(folder)):
            mark = f"{{{{table: {name}}}}}"
            assert any(mark in template.read_text() for template in folder.glob("*.md.in"))


def test_the_index_lists_every_folder():
    index = (EXPERIMENTS / "README.md").read_text()
    for folder in EXPERIMENTS.iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert f"]({folder.name}" in index, folder.name


VERDICTS = {"reproduces", "partly", "does not", "undecided", "-", "holds (ours)", "partly (ours)"}


def test_a_verdict_is_one_of_a_few():
    assert {entry["verdict"] for entry in labbook.entries().values()} <= VERDICTS


PAGES = [folder / "README.md" for folder in labbook.entries()]
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


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_every_sweep_has_its_results(file):
    from raysync.tuning.grid import points

    experiment, results = config.load(file), labtables.Results(file.parent)
    trials, planned = (
        results.trials(file.stem),
        points(experiment.sweep, experiment.seed, str(file)),
    )
    assert len(planned) == len(trials) == results.sweeps.trials[file.stem]
    assert set(trials.status) == {"finished"}
    for number, point in enumerate(planned):
        assert trials.trial[number] == number
        assert {key: trials[f"config/{key}"][number] for key in point} == point


@pytest.mark.parametrize(
    "file",
    [file for file in SWEEPS if labtables.Results(file.parent).sweeps.trials[file.stem] < 20],
    ids=lambda file: file.stem,
)
def test_a_sweep_can_be_planned(file, tmp_path):
    """Each trial is an experiment; the larger sweeps vary the same settings, and planning them
    takes seconds.
    """
    from raysync.tuning.sweep_run import plan

    assert (
        plan(file, [f"output={tmp_path}"]).count
        == labtables.Results(file.parent).sweeps.trials[file.stem]
    )


def test_only_finished_runs_of_declared_seeds_count_in_what_is_committed():
    """Of sweeps, of what scripts wrote, and of the pages that make themselves; `counts` decides it
    for all of them.
    """
    for folder in labbook.entries():
        for file in folder.glob("results/*.csv"):
            rows = pd.read_csv(file)
            of = {"overlap": ["overlap", "overlap-emulated"]}.get(
                file.stem, [file.stem.partition(".")[0]]
            )
            if "seed" in rows and file.stem.endswith(".rates"):
                assert set(rows.seed) == {TUNING_SEED}, file
            elif "seed" in rows:
                seeds = [labtables.seeds_of(config.load(folder / f"{name}.yaml")) for name in of]
                assert all(set(rows.seed) == declared for declared in seeds), file
            assert set(rows.get("status", ())) <= {"finished", "diverged"}, file


def record(label, seed, status="finished", began="20260101-000000"):
    """A record as far as it matters for whether it counts."""
    return SimpleNamespace(
        path=Path(f"{began}-{label}"),
        summary={"status": status},
        config=SimpleNamespace(paradigm=SimpleNamespace(label=label), seed=seed),
    )


def test_runs_that_are_not_finished_or_not_declared_do_not_count(monkeypatch):
    """A third run with an undeclared seed once stood in the table of two."""
    declared = config.validate({"paradigms": ["bsp", "asp"], "seeds": [0, 1]})
    first, second, newer = (
        record("bsp", 0),
        record("asp", 1),
        record("bsp", 0, began="20260102-000000"),
    )
    others = [
        record("bsp", 2),
        record("ssp(staleness=3)", 0),
        record("asp", 0, "unfinished"),
        record("asp", 0, "failed"),
        record("bsp", 1, "diverged"),
        record("bsp", 0, "stopped", began="20260103-000000"),
    ]
    there = dict(enumerate([newer, first, second, *others]))
    monkeypatch.setattr(labtables, "load", lambda path: there[int(path.suffix[1:])])
    paths = [one.path.with_suffix(f".{number}") for number, one in there.items()]
    assert sorted(labtables.records_of(paths, declared), key=lambda one: one.config.seed) == [
        newer,
        second,
    ]
    assert labtables.seeds_of(config.validate({"seed": 7})) == {7}
    rows = pd.DataFrame(
        {
            "seed": [0, 1, 2, 0, 1],
            "status": ["finished", "diverged", "finished", "failed", "unfinished"],
        }
    )
    assert list(labtables.counted(rows, declared).index) == [0, 1]
    with pytest.raises(ValueError, match=naming("stopped")):
        labtables.finished(others[-1])


def test_a_script_leaves_out_what_is_not_declared(runs_folder, tmp_path, monkeypatch):
    """The script of the runs on Ray, given records of two seeds of which its file declares one."""
    spec = spec_from_file_location("overlap_of_decoupled", EXPERIMENTS / "decoupled" / "overlap.py")
    overlap = module_from_spec(spec)
    spec.loader.exec_module(overlap)
    file = {**BASE, "name": "faultd", "paradigms": list(PARADIGMS), "seeds": [1]}
    (tmp_path / "overlap.yaml").write_text(yaml.safe_dump(file))
    (tmp_path / "overlap-emulated.yaml").write_text(yaml.safe_dump({**file, "name": "nothing"}))
    monkeypatch.setattr(overlap, "HERE", tmp_path)
    monkeypatch.setattr(
        overlap, "rows", lambda one, name: [{"file": name, "seed": one.summary["seed"]}]
    )
    assert list(overlap.collected(runs_folder.parent).seed) == [1] * len(PARADIGMS)


def test_results_are_of_files_that_are_there():
    for folder in labbook.entries():
        for file in folder.glob("results/*.csv"):
            name = file.name.partition(".")[0]
            assert name == "sweeps" or (folder / f"{name}.yaml").is_file()


def test_what_is_taken_over_from_a_sweep_gives_the_same_numbers(sweep_folder, tmp_path):
    sweep = load_sweep(sweep_folder)
    shutil.copy(sweep_folder / "sweep.yaml", tmp_path / "tiny.yaml")
    for _ in range(2):  # the second takes the place of the first
        labbook.copy(sweep, sweep.experiment, tmp_path / "results", "tiny")
    results = labtables.Results(tmp_path)
    trials = results.trials("tiny")
    assert list(results.sweeps.index) == ["tiny"]
    # These have seeds that the file does not declare.
    counts = set(sweep.table.trial) - {DIVERGED, LOST}
    assert set(trials.trial) == set(results.curves("tiny").trial) == counts
    assert list(results.sweeps.trials) == [len(counts)]
    good = trials[
        (trials["config/update.lr"] == 0.05) & (trials.paradigm == "lagtuner(bound=hard)")
    ]
    theirs = sweep.table.set_index("trial").loc[good.trial]
    assert labtables.mean(good, "seconds").mean == pytest.approx(
        estimate(list(theirs.seconds)).mean, rel=1e-5
    )
    asp = trials[(trials["config/update.lr"] == 0.05) & (trials.paradigm == "asp")]
    asps = sweep.table.set_index("trial").loc[asp.trial]
    expected = paired_ratio(
        *(dict(zip(rows.seed, rows.seconds, strict=True)) for rows in (theirs, asps))
    )
    assert labtables.ratio(good, asp, "seconds").mean == pytest.approx(expected.mean, rel=1e-5)
    curves = results.curves("tiny")
    for trial, record in sweep.records.items():
        if trial not in counts:
            continue
        mine = curves[curves.trial == trial]
        assert list(mine.accuracy) == pytest.approx(list(record.evaluations.accuracy), rel=1e-5)


def test_repeats_differ_in_their_seed_alone():
    with pytest.raises(AssertionError, match="not repeats"):
        labtables.by_seed(pd.DataFrame({"seed": [0, 0], "seconds": [1.0, 2.0]}), "seconds")


def test_a_sweep_that_has_not_run_is_called_so_on_its_page(pages):
    for file in set(PLANNED) - set(SWEEPS):
        assert re.search(rf"Not run yet: .*`{file.name}`", pages[file.parent / "notes.md"]), file


@pytest.mark.parametrize(
    ("file", "model", "profile"),
    [
        ("lagtuner/drops", "resnet110", "gtx1060+gtx1080ti"),
        ("lagtuner/figure-2-pace", "alexnet-small", "soscip-4x4-p100"),
    ],
)
def test_the_clock_is_that_of_the_papers_model_on_the_profile(file, model, profile, one_thread):
    """A step, and the way of a vector, take as long as the profile says they do for that model."""
    ours, theirs = (
        config.load(EXPERIMENTS / f"{file}.yaml"),
        config.validate({"profile": profile, "engine": "virtual"}),
    )
    big, small = (ModelPlan(name, {}, (3, 32, 32), 10) for name in (model, "lenet"))
    numbers = [
        sum(one.numel() for one in plan.build().state_dict().values()) for plan in (big, small)
    ]
    for mine, its in zip(ours.workers, theirs.workers, strict=True):
        assert mine.step_s / mine.speed == pytest.approx(
            step_flops(on_random_samples(big), 128) / its.flops_per_s / its.speed, rel=0.005
        )
    for key in ("update_bytes_per_s", "server_bandwidth_bytes_per_s"):
        mine, its = getattr(ours.network, key), getattr(theirs.network, key)
        assert (mine is None) == (its is None)
        assert mine is None or numbers[1] / mine == pytest.approx(numbers[0] / its, rel=0.01)
    assert numbers[1] / ours.network.link.bandwidth_bytes_per_s == pytest.approx(
        numbers[0] / theirs.network.link.bandwidth_bytes_per_s, rel=0.01
    )
    assert ours.network.link.latency_s == theirs.network.link.latency_s
    assert ours.network.update_s == theirs.network.update_s
    assert ours.cluster == theirs.cluster


def test_the_two_gpus_are_the_same_in_all_files():
    files = [
        config.load(LAGTUNER / f"{name}.yaml") for name in ("drops", "lead", "stragglers-two-gpus")
    ]
    assert all(
        (one.workers, one.network, one.batch_size)
        == (files[0].workers, files[0].network, files[0].batch_size)
        for one in files
    )


def test_the_comparison_of_balanced_is_that_of_its_pre_study_and_of_its_pace():
    tables, results = labbook.tables_of(BALANCED), labtables.Results(BALANCED)
    for cluster in tables.CLUSTERS:
        pace = results.experiment(f"pace-{cluster}")
        for task in tables.TASKS:
            experiment = results.experiment(f"{task}-{cluster}")
            assert experiment.update.lr == tables.best_lr(results, task)
            assert experiment.target.value == pytest.approx(tables.target(results, task))
            assert not set(experiment.seeds) & set(results.experiment(f"lr-{task}").seeds)
            assert experiment.paradigms == pace.paradigms
            assert (experiment.faults, experiment.network) == (pace.faults, pace.network)
        ours = results.experiment(f"fashion-{cluster}")
        assert (ours.workers, ours.batch_size) == (pace.workers, pace.batch_size)


def test_a_goal_of_balanced_is_met_only_by_what_was_measured():
    """Below the target in one of our runs: undecided. In one of ASP's: its whole run counts."""
    tables = labbook.tables_of(BALANCED)
    rows = [("asp", 0, 10.0, 20.0), ("asp", 1, None, 20.0), ("ours", 0, 9.0, 20.0)]
    columns = ["label", "seed", tables.TIME, "seconds"]
    good, bad = (
        tables.time_to_target(
            pd.DataFrame([*rows, ("ours", 1, reached, 20.0)], columns=columns), "ours"
        )
        for reached in (18.0, None)
    )
    assert (good.bounded, good.ratio.mean) == (True, pytest.approx(0.9))
    fast = Estimate(0.9, 0.8, 1.0, 2, 2)
    near, beyond, far = (Estimate(0.0, *ends, 4, 4) for ends in ((-1, 2), (-9, 2), (5, 9)))
    pace = Estimate(0.97, 0.96, 0.98, 10, 10)
    reached = tables.Time(fast, bounded=True)
    assert tables.met_of(pace, near, reached, 3) == ("yes", "yes", "yes")
    slow = Estimate(0.94, 0.92, 0.949, 10, 10)
    assert tables.met_of(slow, beyond, bad, 3) == ("no", "undecided", "undecided")
    never = tables.Time(Estimate(None, None, None, 0, 2), bounded=True)
    assert tables.met_of(estimate([0.97]), far, never, 3) == ("undecided", "no", "no")
    late = Estimate(1.2, 1.1, 1.3, 2, 2)
    for bounded, said in ((True, "undecided"), (False, "no")):
        assert tables.met_of(pace, near, tables.Time(late, bounded), 3)[2] == said


def test_a_goal_of_the_benchmarks_is_met_only_by_its_whole_interval():
    """And where several rows belong to it, by the worst."""
    tables = labbook.tables_of(EXPERIMENTS / "benchmarks")

    def judged(*cells, **options):
        return tables.Goal("", 0.8, lambda _: list(cells), **options).verdict(None)

    assert judged("0.85 (0.81 to 0.90)") == judged("1,000") == "met"
    assert judged("0.85 (0.80 to 0.90)") == "open"
    assert judged("0.79 (0.70 to 0.90)") == "missed"
    assert judged("0.85 (0.81 to 0.90)", "0.79") == "missed"
    assert judged("0.70 (0.60 to 0.75)", at_least=False) == "met"
    assert judged("0.70", "0.85 (0.60 to 0.90)", at_least=False) == "missed"


def test_shares_of_balanced_are_settled_where_the_rule_would_leave_them():
    """Four workers at 1, 1, 0.7 and 0.35: 42, 42, 29 and 15 of 128 samples."""
    spec = spec_from_file_location("timing_of_balanced", BALANCED / "timing.py")
    timing = module_from_spec(spec)
    spec.loader.exec_module(timing)
    experiment = config.load(BALANCED / "settle.yaml")
    slots = ["fast-0", "fast-1", "medium-0", "slow-0"]
    for sizes, factor, settled in [
        ([42, 42, 29, 15], 1.0, True),
        ([32, 32, 32, 32], 1.0, False),
        ([42, 42, 29, 15], 2.0, False),
        ([25, 50, 35, 18], 2.0, True),
        ([25, 50, 35, 18], 1.0, False),
    ]:
        shares = dict(zip(slots, sizes, strict=True))
        assert timing.is_settled(experiment, shares, {"fast-0": factor}) == settled


def test_the_pages_of_lagtuner_name_every_file_in_its_folder():
    text = "".join(page.read_text() for page in sorted(LAGTUNER.glob("*.md")))
    assert all(file.name in text for file in LAGTUNER.glob("*.yaml"))
    assert all(re.search(rf"\({file.name}\)", text) for file in LAGTUNER.glob("*.svg"))


def test_the_newest_sweep_that_was_not_interrupted_is_taken(sweep_folder, tmp_path):
    for day, status in ((1, None), (2, None), (3, "stopped")):
        folder = tmp_path / f"2026010{day}-000000-sweep-abcd"
        folder.mkdir()
        (folder / "sweep.yaml").write_text((sweep_folder / "sweep.yaml").read_text())
        table = load_sweep(sweep_folder).table
        table.assign(status=status or table.status).to_parquet(folder / "sweep.parquet")
    assert labbook.newest(tmp_path).path.name.startswith("20260102")
    assert labbook.newest(tmp_path / "nothing") is None
