"""The report as Markdown, what it was measured with, and the command that makes it."""

import json
import sys

import pytest

from raysync import cli
from raysync.results.collection import Collection, collect
from raysync.results.markdown import markdown, notes
from raysync.results.provenance import commands, configuration, dates, environment, title
from raysync.results.ranking import rank
from raysync.results.sentences import answer
from raysync.results.tables import tables_of
from tests.builders.messages import Telling, tells


def published_text(collection):
    _, beside = tables_of(collection, rank(collection))
    return beside.frame()


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


def test_published_ratios_and_values(made):
    rows = {
        "bsp": {"time_to_target_s": 100.0},
        "asp": {"time_to_target_s": 40.0},
        "x": {"time_to_target_s": None},
    }
    measured = {
        label: [{"time_to_target_s": value * seed, "seconds": 9.0} for seed in (1, 2)]
        for label, value in (("bsp", 10.0), ("asp", 5.0), ("x", 1.0))
    }
    published = {
        "source": "Somebody 2020, Table 2",
        "note": "On GPUs.",
        "rows": rows,
        "relative_to": "bsp",
    }
    collection = made(measured, published=published)
    assert published_text(collection).to_dict("list") == {
        "s to 90.0%, published": ["100", "40.0", "not reached"],
        "s to 90.0% / bsp, measured": ["1.00", "0.500", "0.100"],
        "s to 90.0% / bsp, published": ["1.00", "0.400", "-"],
    }
    assert tells(markdown(collection), "Published: 2020 2 GPUs")
    plain = published_text(made(measured, published=published | {"relative_to": None}))
    assert plain["s to 90.0%, published"].tolist() == ["100", "40.0", "not reached"]


def test_context(sweep, runs_folder):
    assert tells(title(sweep), "mlp digits 3 2 1 4 0 3")
    known = configuration(sweep)
    assert tells(known["update"], "varies")
    assert known["model"].startswith("mlp(hidden=[16]), 1,")
    assert known["workload"] == "samples: 1600"
    assert known["target"] == "60.0%"
    collection = collect([runs_folder])
    assert configuration(collection)["faults"] == "1: crash"
    assert configuration(collection)["update"] == "optimizer: sgd, lr: 0.05"
    assert environment(collection).count("Python ") == 1
    assert dates(collection).startswith("20")
    first = collection.runs[0]
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
        file.write_text(json.dumps(json.loads(file.read_text()) | {"command": words}))
    assert commands(collect([own_copy])) == [line, f"raysync report {own_copy}"]


def test_the_report_says_who_used_shared_memory(own_copy):
    """Nothing where nobody did, and nothing of what a damaged record says."""
    files = sorted(own_copy.glob("*/environment.json"))
    assert "transport" not in configuration(collect([own_copy]))

    def says(*transports, file=files[0]):
        places = {f"w-{n}": {"transport": each} for n, each in enumerate(transports)}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"places": places}))
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
    files[0].write_text(json.dumps(json.loads(files[0].read_text()) | {"places": {"w": 3}}))
    assert "transport" not in configuration(collect([files[0].parent]))


def test_runs_that_nobody_typed(own_copy):
    for file in own_copy.glob("*/environment.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"command": ["-c"]}))
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
def call(tmp_path, monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "argv", ["raysync", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return call


def test_markdown_goes_to_the_terminal_or_a_file(call, runs_folder, tmp_path):
    code, out, err = call(runs_folder, "--format", "md")
    assert (code, err) == (0, "")
    assert out == markdown(collect([runs_folder]))
    assert call(runs_folder, "--format", "md", "--median", "-o", "x.md") == (
        0,
        "Written: x.md\n",
        "",
    )
    assert (tmp_path / "x.md").read_text() == markdown(collect([runs_folder]), median=True)


def test_a_trace_goes_into_the_run_s_folder(call, own_copy):
    record = sorted(own_copy.iterdir())[0]
    assert call(record, "--format", "trace") == (0, f"Written: {record}/trace.json\n", "")
    assert json.loads((record / "trace.json").read_text())["traceEvents"]


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
def test_bad_input(call, runs_folder, tmp_path, arguments, says):
    (tmp_path / "file").write_text("")
    code, out, err = call(*(str(runs_folder) if one == "RUNS" else one for one in arguments))
    assert (code, out) == (2, "")
    assert tells(err, says)
    assert len(err.strip().splitlines()) <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_place_that_cannot_be_written_to(call, own_copy):
    """A folder is where the page would go."""
    (own_copy / "report.html").mkdir()
    code, _, err = call(own_copy)
    assert code == 2
    assert f"{own_copy}/report.html: cannot be written (Is a directory)." in err
