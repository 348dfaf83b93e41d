"""The report as Markdown, what it was measured with, and the command that makes it."""

import json
from functools import partial

import pytest

from raysync.results.collection import Collection, collect
from raysync.results.markdown import markdown, notes
from raysync.results.provenance import commands, configuration, dates, environment, title
from raysync.results.ranking import rank
from raysync.results.sentences import answer
from raysync.results.tables import tables_of
from tests.builders.files import edit
from tests.builders.messages import Telling, tells


def cells(line):
    return [part.strip() for part in line.strip().strip("|").split("|")]


def test_the_report_of_a_sweep(sweep):
    text = markdown(sweep)
    lines = text.splitlines()
    assert lines[0] == "# tiny"
    for scenario in sweep.scenarios:
        assert f"## {scenario}" in lines
        assert answer(rank(sweep, scenario)) in lines
        [table] = tables_of(sweep, rank(sweep, scenario))
        begin = lines.index(answer(rank(sweep, scenario))) + 2
        headings = [column.heading for column in table.columns]
        assert cells(lines[begin]) == ["paradigm", *headings]
        for line, (label, row) in zip(lines[begin + 2 :], table.rows.items(), strict=False):
            assert cells(line) == [label, *(column.cell(row) for column in table.columns)]
    assert "5 (1 diverged, 1 failed)" in text
    assert tells(lines, "record: update.lr=0.2 asp 4:")
    assert f"raysync sweep {sweep.sweep.path}/sweep.yaml" in lines
    assert lines.count("## Configuration") == 1


def test_the_median_s_table_names_the_seeds(sweep):
    scenario = "update.lr=0.05"
    [table] = tables_of(sweep, rank(sweep, scenario), median=True)
    text = table.frame()
    assert set(text["seed"]) <= {"0", "1", "2"}
    assert not text.astype(str).map(lambda one: "±" in one).any(axis=None)
    assert "median run" in markdown(sweep, median=True)


def test_context(sweep, runs):
    assert tells(title(sweep), "mlp digits 3 2 1 4 0 3")
    known = configuration(sweep)
    assert tells(known["update"], "varies")
    assert known["model"].startswith("mlp(hidden=[16]), 1,")
    assert known["workload"] == "samples: 1600"
    assert known["target"] == "60.0%"
    assert configuration(runs)["faults"] == "1: crash"
    assert configuration(runs)["update"] == "optimizer: sgd, lr: 0.05"
    assert environment(runs).count("Python ") == 1
    assert dates(runs).startswith("20")
    first = runs.runs[0]
    assert title(collect([first.record.path])).endswith(f", seed {first.seed}")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["/usr/bin/raysync", "compare", "x.yaml", "--set", "seeds=[0, 1]"],
            "raysync compare x.yaml --set 'seeds=[0, 1]'",
        ),
        (["/x/raysync/__main__.py", "run", "x.yaml"], "python -m raysync run x.yaml"),
    ],
)
def test_the_command_that_was_typed(own_copy, words, line):
    for file in own_copy.glob("*/environment.json"):
        edit(file, command=words)
    assert commands(collect([own_copy])) == [line, f"raysync report {own_copy}"]


def test_the_report_says_who_used_shared_memory(own_copy):
    """Nothing where nobody did, and nothing of what a damaged record says."""
    files = sorted(own_copy.glob("*/environment.json"))
    assert "transport" not in configuration(collect([own_copy]))

    def says(*transports, file=files[0]):
        places = {f"w-{n}": {"transport": each} for n, each in enumerate(transports)}
        edit(file, places=places)
        return configuration(collect([file.parent])).get("transport")

    assert tells(
        says("shared-memory", "object-ref", "shared-memory"),
        "shared-memory: w-0 w-2 object-ref: w-1",
    )
    assert says("shared-memory", "shared-memory") == "shared-memory (all)"
    assert set(configuration(collect([own_copy]))["transport"].split(" | ")) == {
        "shared-memory (all)",
        "object-ref",
    }
    assert says("object-ref") is None
    edit(files[0], places={"w": 3})
    assert "transport" not in configuration(collect([files[0].parent]))


def test_runs_that_nobody_typed(own_copy):
    for file in own_copy.glob("*/environment.json"):
        edit(file, command=["-c"])
    collection = collect([own_copy])
    assert (
        commands(collection)[0]
        == f'for file in {own_copy}/*/config.yaml; do raysync run "$file"; done'
    )
    path = collection.runs[0].record.path
    assert commands(collect([path]))[0] == f"raysync run {path}/config.yaml"


def test_notes(sweep):
    assert notes(Collection(sweep.paths, sweep.runs, superseded=2)) == [Telling("2 earlier")]
    many = notes(Collection(sweep.paths, sweep.runs, sweep.failed * 7))
    assert many[0].endswith("; and 2 more.")


@pytest.fixture
def report(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return partial(call, "report")


def test_markdown_goes_to_the_terminal_or_a_file(report, runs, runs_folder, tmp_path):
    assert report(runs_folder, "--format", "md") == (0, markdown(runs), "")
    code, out, err = report(runs_folder, "--format", "md", "--median", "-o", "x.md")
    assert (code, tells(out, "x.md"), err) == (0, True, "")
    assert (tmp_path / "x.md").read_text() == markdown(runs, median=True)


def test_a_trace_goes_into_the_run_s_folder(report, own_record):
    code, out, err = report(own_record, "--format", "trace")
    assert (code, tells(out, f"{own_record}/trace.json"), err) == (0, True, "")
    assert json.loads((own_record / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["RUNS", "--median"], "--median --format"),
        (["RUNS", "--format", "trace"], "--format trace: 6 them:"),
        (["RUNS", "--format", "md", "-o", "no/where.md"], "--output no/where.md:"),
        (["RUNS", "-o", "."], "--output --format"),
        (["RUNS", "--format", "png", "-o", "file"], "--output file: --format png"),
    ],
)
def test_bad_input(report, runs_folder, tmp_path, arguments, says):
    (tmp_path / "file").write_text("")
    code, out, err = report(*(runs_folder if one == "RUNS" else one for one in arguments))
    assert (code, out) == (2, "")
    assert tells(err, says)
    assert len(err.strip().splitlines()) <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_place_that_cannot_be_written_to(report, own_copy):
    """A folder is where the page would go."""
    (own_copy / "report.html").mkdir()
    code, _, err = report(own_copy)
    assert code == 2
    assert tells(err, f"{own_copy}/report.html: directory")
