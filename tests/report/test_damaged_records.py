"""Records that are damaged, unfinished, or mean harm: each command answers in a line or two, and
imports nothing.
"""

import gc
import json
import shutil
import subprocess
import sys
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from random import Random
from time import monotonic

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raysync
from raysync.core.journal import JOURNAL_SCHEMA
from raysync.errors import ConfigError
from raysync.record.push_rows import PushRow
from raysync.record.reader import legible
from raysync.record.sweeps import load_sweep
from raysync.results.collection import collect
from raysync.results.markdown import plain
from raysync.results.trace import trace, write_trace
from tests.builders.damage import CALLS, HARM, NO_FILES, checkpoint_damaged, damage, put, signed
from tests.builders.files import edit
from tests.builders.messages import naming, tells
from tests.builders.reports import BASE, cut, kill
from tests.builders.sweeps import run_until

SEEDS = [0, pytest.param(1, marks=pytest.mark.slow)]
FUZZED = 20
"""The fuzzer's cases of a seed; thousands of seeds were tried beside the tests."""
TINY = BASE | {"workload": {"samples": 480}, "evaluation": {"marks": 3}}


@pytest.fixture(scope="module")
def tiny_records(tmp_path_factory, torch_of_one_thread):
    """Read-only: a finished run of LagTuner, one of a decoupled network, and one of Sync-Switch
    that was killed.
    """
    output = tmp_path_factory.mktemp("damaged")
    crash = [{"kind": "crash", "worker": "fast-1", "at_s": 0.1, "rejoin_after_s": 0.05}]
    settings = [
        {"paradigm": "lagtuner", "faults": crash},
        {
            "paradigm": {"name": "decoupled", "groups": 2},
            "workers": [{"name": "fast", "count": 4, "step_s": 0.02}],
        },
        {"paradigm": {"name": "sync-switch", "first": {"name": "ringmaster", "paradigm": "bsp"}}},
    ]
    records = [raysync.run(TINY | {"output": str(output)} | more).path for more in settings]
    kill(records[-1])
    return records


@pytest.fixture
def record(tiny_records, tmp_path):
    """Of LagTuner's run, a copy that a test may damage."""
    return shutil.copytree(tiny_records[0], tmp_path / "record")


def commands(record, output):
    yield "watch", "--once", record
    yield "replay", record
    yield "report", "--format", "md", record
    yield "report", "--format", "trace", "--output", output, record


# ---- one damage of each kind ----


def in_file(name, change):
    return lambda record: change(record / name)


def text(words):
    return lambda file: file.write_text(words)


def packed(codec):
    return lambda file: pq.write_table(pq.read_table(file), file, compression=codec)


def other_line(number, change):
    """Change a line of the journal, where no summary stands for it."""

    def change_in(record):
        (record / "summary.json").unlink()
        file = record / "journal.jsonl"
        lines = file.read_text().split("\n")
        lines[number - 1] = change(lines[number - 1])
        file.write_text("\n".join(lines))

    return change_in


def without_update(record):
    lines = (record / "journal.jsonl").read_text().split("\n")
    _, second, *_ = [number for number, line in enumerate(lines, 1) if '"Apply"' in line]

    def change(line):
        entry = json.loads(line)
        entry["decisions"] = [each for each in entry["decisions"] if each["type"] != "Apply"]
        return json.dumps(entry)

    other_line(second, change)(record)


def of_another_raysync(version):
    def change(record):
        edit(record / "environment.json", lambda it: it["packages"].update(raysync=version))
        (record / "config.yaml").write_text("nothing_known: 1\n")

    return change


def trace_of_a_device(file):
    edit(file, lambda it: it["workers"][0].update({"step_s": None, "trace": "/dev/zero"}))


def collected(record):
    return collect([record])


def config_of(record):
    return raysync.load(record).config


def pushes_of(record):
    return raysync.load(record).pushes


def trace_of(record):
    return trace(raysync.load(record))


@pytest.mark.parametrize(
    ("change", "read", "says"),
    [
        (in_file("environment.json", cut), collected, "environment"),
        (in_file("evaluations.parquet", cut), collected, "evaluations"),
        (in_file("pushes.parquet", cut), collected, "pushes"),
        (in_file("pushes.parquet", Path.unlink), collected, "pushes"),
        (in_file("pushes.parquet", packed("gzip")), pushes_of, "GZIP"),
        (in_file("pushes.parquet", packed("zstd")), pushes_of, "ZSTD"),
        (in_file("config.yaml", text("a: b: c")), collected, "config.yaml"),
        (in_file("config.yaml", Path.unlink), collected, "config.yaml"),
        (in_file("config.yaml", trace_of_a_device), config_of, "numbers"),
        (
            in_file("config.yaml", lambda file: edit(file, profile="/dev/zero.yaml")),
            config_of,
            "settings",
        ),
        (in_file("config.yaml", lambda file: edit(file, hyperdrive=9)), collected, "hyperdrive"),
        (of_another_raysync("0.0.0"), config_of, "an older raysync"),
        (of_another_raysync("9999.0.0"), config_of, "a newer raysync"),
        (
            in_file("journal.jsonl", lambda file: edit(file, journal=JOURNAL_SCHEMA + 1)),
            collected,
            f"raysync: {JOURNAL_SCHEMA + 1} {JOURNAL_SCHEMA}",
        ),
        (in_file("journal.jsonl", text("")), collected, "journal"),
        (in_file("journal.jsonl", Path.unlink), collected, "journal"),
        (other_line(21, lambda line: line[:20]), collected, "line 21"),
        (other_line(2, lambda line: "nonsense"), trace_of, "line 2"),
        (without_update, collected, "journal"),
    ],
)
def test_what_is_damaged_is_named(record, change, read, says):
    change(record)
    with pytest.raises(ConfigError, match=naming(says)) as raised:
        read(record)
    assert str(record) in str(raised.value)
    assert len(str(raised.value).splitlines()) <= 2


def test_a_damaged_line_does_not_matter_where_a_summary_stands_for_it(record):
    summary = (record / "summary.json").read_text()
    other_line(21, lambda line: line[:20])(record)
    (record / "summary.json").write_text(summary)
    assert len(collect([record]).runs) == 1


def test_a_damaged_record_of_a_sweep_is_named(sweep_folder, tmp_path):
    folder = shutil.copytree(sweep_folder, tmp_path / "sweep")
    [file] = folder.glob("records/00005/*/evaluations.parquet")
    cut(file)
    with pytest.raises(ConfigError, match=naming(f"{file.parent}: evaluations")):
        collect([folder])


# ---- any damage ----


OF_A_RECORD = ("config", "environment", "summary", "pushes", "evaluations", "complete", "ended")
QUESTIONS = [*map(attrgetter, OF_A_RECORD), lambda record: list(record.journal())]
"""What a program asks a record for."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_record_is_answered_in_a_line_or_two(seed, tiny_records, tmp_path, call):
    """Any damage to any file: exit status 0 or 2 (of a replay that differs 1), no traceback,
    nothing raw in the output.
    """
    random = Random(seed)
    for _ in range(FUZZED):
        copy = shutil.copytree(random.choice(tiny_records), tmp_path / "record")
        what = damage(copy, random)
        for arguments in commands(copy, tmp_path / "trace.json"):
            code, out, err = call(*arguments)
            assert code in ((0, 1, 2) if arguments[0] == "replay" else (0, 2)), (what, err)
            assert code != 2 or (err.startswith("raysync: ") and err.count("\n") <= 3), (what, err)
            assert "\x1b" not in out + err, what
        for ask in QUESTIONS:
            with suppress(ConfigError):
                ask(raysync.load(copy))
        assert not CALLS, what
        shutil.rmtree(copy)


READ_ALL = """
import resource, sys
from pathlib import Path
import psutil
import raysync
from raysync.errors import ConfigError
from raysync.results.collection import collect
def read(folder):
    record = raysync.load(folder)
    record.pushes, list(record.journal()), record.model_file()
    collect([folder])
def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
whole, *folders = map(Path, sys.argv[1:])
read(whole)  # what it imports is not counted
before, space = most(), psutil.Process().memory_info().vms + (2 << 30)
resource.setrlimit(resource.RLIMIT_AS, (space, space))
for folder in folders:
    try:
        read(folder)
    except ConfigError as error:
        print(folder.name, "refused", str(error).count(chr(10)))
    else:
        print(folder.name, "read", 0)
print(most() - before)
"""


@pytest.mark.slow
def test_no_file_of_a_record_is_read_without_bounds(tiny_records, tmp_path):
    """Pipes, devices, loops, a terabyte, and tables that are larger by far than their files: each
    is an error of a line within seconds, in a process whose memory is bounded. (What the journal
    can stand for, or is not needed, may be read.)
    """
    folders, names = [], sorted(path.name for path in tiny_records[0].iterdir())
    for name in names:
        for what, number in zip(NO_FILES, range(len(NO_FILES)), strict=True):
            folders.append(shutil.copytree(tiny_records[0], tmp_path / f"{name}-{number}"))
            put(what, folders[-1] / name)
    for number, table in enumerate(swollen()):
        folders.append(shutil.copytree(tiny_records[0], tmp_path / f"table-{number}"))
        pq.write_table(table, folders[-1] / "pushes.parquet", store_schema=False)
    end = monotonic() + 60
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, tiny_records[0], *folders],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert monotonic() < end
    assert done.returncode == 0, done.stderr
    *lines, most_kib = done.stdout.splitlines()
    assert int(most_kib) < 500 << 10
    answers = [line.split() for line in lines]
    assert len(answers) == len(folders)
    assert {what for _, what, _ in answers} == {"read", "refused"}
    assert all(int(breaks) <= 1 for _, _, breaks in answers)
    read = {name.rpartition("-")[0] for name, what, _ in answers if what == "read"}
    assert read == {"summary.json", "model.safetensors"}


def swollen():
    """Tables that are far larger than their files, or have too many columns."""
    yield pa.table({name: pa.array(np.zeros(40_000_000)) for name in ("at", "wait", "busy")})
    long = pa.array(["x" * (1 << 20)])
    yield pa.table({"worker": pa.DictionaryArray.from_arrays(np.zeros(1_500, np.int32), long)})
    yield pa.table([pa.array([0.0])] * 12_000, names=list(map(str, range(12_000))))


@pytest.mark.parametrize(
    "error",
    [pa.ArrowNotImplementedError, pa.ArrowException, pa.ArrowKeyError, MemoryError, OSError],
)
def test_every_error_of_pyarrow_is_one_of_the_record(tmp_path, error):
    with pytest.raises(ConfigError), legible(tmp_path, "pushes"):
        raise error("x")


def test_every_damaged_table_of_a_sweep_is_an_error(sweep_folder, tmp_path):
    """Among them what pyarrow cannot make at all, or pandas of it."""
    copy = tmp_path / "sweep"
    shutil.copytree(sweep_folder, copy, ignore=shutil.ignore_patterns("records"))
    whole, random, failed = (copy / "sweep.parquet").read_bytes(), Random(0), 0
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(random.choice((1, 1, 5))):
            data[-random.randrange(1, len(data) // 2)] = random.randrange(256)
        (copy / "sweep.parquet").write_bytes(data)
        try:
            assert load_sweep(copy).table is not None
        except ConfigError:
            failed += 1
    assert failed > 50
    for record in ("/etc", "../../other"):
        pq.write_table(
            pa.table({"trial": [0], "record": [record], "status": ["x"], "error": [""]}),
            copy / "sweep.parquet",
        )
        with pytest.raises(ConfigError):
            assert load_sweep(copy).table is not None


# ---- checkpoints ----


@pytest.fixture(scope="module")
def lost_record(tmp_path_factory, torch_of_one_thread):
    """Read-only: a run that was stopped, with two checkpoints."""
    settings = TINY | {"checkpoint": {"every_progress": 0.2}, "update": {"momentum": 0.5}}
    output = tmp_path_factory.mktemp("lost")
    run_until(0.5, settings | {"output": str(output)})
    [file] = output.rglob("journal.jsonl")
    return file.parent


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_checkpoint_is_answered_in_a_line_or_two(seed, lost_record, tmp_path, call):
    """Any damage to the newest checkpoint, with checksums that fit: another one is taken, or the
    run goes on, or it is refused before anything of the record has changed.
    """
    random, ends = Random(seed), []
    for _ in range(FUZZED):
        copy = shutil.copytree(lost_record, tmp_path / "record")
        newest = max((copy / "checkpoints").iterdir())
        what = checkpoint_damaged(newest, random)
        before = (copy / "journal.jsonl").read_bytes()
        code, _, err = call("run", "--resume", copy)
        ends.append(code)
        assert code in (0, 2), (what, err)
        assert "Traceback" not in err, what
        if code:
            assert err.count("\n") <= 6, (what, err)
            assert (copy / "journal.jsonl").read_bytes() == before, what
        assert not CALLS
        shutil.rmtree(copy)
    assert {0, 2} == set(ends)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("manifest.json", NO_FILES), ("state.json", ["pipe"]), ("world-0.safetensors", ["loop"])],
)
def test_what_is_no_file_in_a_checkpoint_leaves_it_out(name, kinds, lost_record, tmp_path, call):
    for what in kinds:
        copy = shutil.copytree(lost_record, tmp_path / "record")
        newest = max((copy / "checkpoints").iterdir())
        put(what, newest / name)
        code, _, err = call("run", "--resume", copy)
        assert code == 0, (what, err)
        assert int(newest.name) > 1, "the one before it is taken"
        shutil.rmtree(copy)


def test_an_empty_state_is_refused(lost_record, tmp_path, call):
    copy = shutil.copytree(lost_record, tmp_path / "record")
    for folder in (copy / "checkpoints").iterdir():
        (folder / "state.json").write_text("{}")
        signed(folder)
    code, _, err = call("run", "--resume", copy)
    *before, line = err.splitlines()
    assert (code, len(before)) == (2, 1), err  # before it stands the learning rate
    assert "checkpoint" in line


# ---- what a record names ----


def set_class(name, **parameters):
    return lambda head: head["paradigm"].update({"class": name, "parameters": parameters})


INNER = {"name": HARM}
WAYS_IN = [
    (HARM, {}),
    ("os:system", {"command": "true"}),
    ("raysync.paradigms.ringmaster:Ringmaster", {"paradigm": INNER}),
    ("raysync.paradigms.balanced:Balanced", {"paradigm": INNER}),
    (
        "raysync.paradigms.syncswitch:SyncSwitch",
        {"first": "bsp", "then": [HARM], "fraction": [0.5]},
    ),
    ("raysync.paradigms.decoupled:Decoupled", {"sync": {"name": "ringmaster", "paradigm": INNER}}),
]


@pytest.mark.parametrize(("name", "parameters"), WAYS_IN)
def test_replay_builds_only_what_is_registered(record, call, name, parameters):
    edit(record / "journal.jsonl", set_class(name, **parameters))
    code, _, err = call("replay", record)
    assert code == 2
    assert tells(err, "raysync")
    assert "--trust" in err
    assert not CALLS


@pytest.mark.parametrize(
    ("name", "parameters", "says"),
    [
        ("raysync.paradigms.ssp:SSP", {"stalenes": 1}, "'staleness'"),
        ("raysync.paradigms.ssp:SSP", {"staleness": "x"}, "staleness"),
        ("raysync.paradigms.decoupled:Decoupled", {"modules": 10**8}, "1000"),
        ("raysync.paradigms.lagtuner:LagTuner", {"s_upper": 10**8}, "1000"),
    ],
)
def test_the_parameters_of_a_header_are_validated(record, call, name, parameters, says):
    edit(record / "journal.jsonl", set_class(name, **parameters))
    code, _, err = call("replay", record)
    assert code == 2
    assert tells(err, says)


@pytest.mark.parametrize(
    "named",
    [INNER, {"name": "ringmaster", "paradigm": INNER}, {"name": "no.such:AnyParadigm", "pace": 3}],
)
def test_reading_a_record_imports_nothing_and_shows_what_it_says(record, call, tmp_path, named):
    edit(record / "config.yaml", paradigm=named, paradigms=[named], model=HARM, data=HARM)
    edit(record / "summary.json", lambda summary: summary.pop("paradigm_label"))
    for arguments in commands(record, tmp_path / "trace.json"):
        assert call(*arguments)[0] == 0
    _, out, _ = call("report", "--format", "md", record)
    loaded = raysync.load(record)
    assert loaded.config.paradigm.label in out
    assert loaded.config.paradigm.parameters == {
        key: value for key, value in named.items() if key != "name"
    }
    with pytest.raises(ConfigError, match=r"trust=True"):
        loaded.config.paradigm.make()
    with pytest.raises(ConfigError):
        assert raysync.load(record, trust=True).config
    assert not CALLS


OWN = '''
from dataclasses import dataclass
from raysync.paradigms.asp import ASP

@dataclass
class Mine(ASP):
    """As asynchronous as ASP."""

    name = "mine"
    pace: int = 1
'''


def test_a_paradigm_of_ones_own_replays_where_it_is_trusted(
    tmp_path, call, monkeypatch, torch_of_one_thread
):
    (tmp_path / "my_rules.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    named = {"name": "my_rules:Mine", "pace": 7}
    settings = TINY | {"paradigm": named, "paradigms": [named], "output": str(tmp_path)}
    path = raysync.run(settings).path
    monkeypatch.delitem(sys.modules, "my_rules")
    for arguments in (["report"], ["report", "--format", "md"], ["watch", "--once"]):
        code, out, err = call(*arguments, path)
        assert (code, err) == (0, "")
        assert arguments == ["report"] or "mine(pace=7)" in out
    assert raysync.load(path).config.paradigm.parameters == {"pace": 7}
    assert call("replay", path)[0] == 2
    assert "my_rules" not in sys.modules
    assert call("replay", path, "--trust")[0] == 0
    assert raysync.load(path, trust=True).config.paradigm.make().pace == 7


# ---- what is missing ----


@pytest.mark.parametrize("damaged", [b"", b"{", b'{"status": 3}', None])
def test_a_summary_that_cannot_be_read_hides_no_journal(record, damaged):
    whole = raysync.load(record)
    before = whole.summary | {"wall_seconds": None}, whole.pushes, whole.evaluations
    file = record / "summary.json"
    file.unlink() if damaged is None else file.write_bytes(damaged)
    after = raysync.load(record)
    assert not after.complete
    assert after.summary == before[0]
    assert after.pushes.equals(before[1])
    assert after.evaluations.equals(before[2])


def test_the_summary_of_a_killed_run_keeps_no_rows(record):
    """However long the journal: the row of a push goes as it comes."""

    def rows():
        gc.collect()
        return sum(type(one) is PushRow for one in gc.get_objects())

    kill(record)
    loaded, before = raysync.load(record), rows()
    assert loaded.summary["status"] == "unfinished"
    assert rows() <= before
    assert len(loaded.pushes) == loaded.summary["pushes"] > 0


def test_a_journal_that_was_cut_off_is_said_to_be(record, call):
    """Of a run that was closed, so that its summary says nothing of it; in the middle of a line, or
    between two.
    """
    journal = record / "journal.jsonl"
    text = journal.read_text()
    says = {
        ("replay",): "closing line",
        ("watch", "--once"): "truncated",
        ("report", "--format", "md"): f"Unfinished: lagtuner seed 0 {record}",
    }
    for command, words in says.items():
        assert not tells(call(*command, record)[1], words)
    middle = len(text) // 2
    between = text.rindex("\n", 0, middle) + 1
    for size in (middle, between, text.rindex("\n", 0, -1) + 1, len(text) - 1):
        journal.write_text(text[:size])
        assert not raysync.load(record).ended
        for command, words in says.items():
            code, out, _ = call(*command, record)
            assert code == 0
            assert tells(out, words)
    kill(record)
    assert tells(call("report", "--format", "md", record)[1], "killed")
    [run] = collect([record]).runs
    assert run.incomplete_reason


# ---- what is shown ----


def test_control_characters_are_visible(record, call):
    """A remark in the terminal, and an error that quotes the record."""
    journal = record / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    remark = {"type": "Remark", "at": 0.0, "text": "\x1b]0;hello\x07\x9b2J\ud800"}
    journal.write_text("".join([*lines[:-1], json.dumps(remark) + "\n", lines[-1]]))
    code, out, _ = call("watch", "--once", record)
    assert code == 0
    assert "\\x1b]0;hello" in out
    assert "\\x9b2J\\ud800" in out
    edit(journal, set_class("\x1b[2J:x"))
    code, _, err = call("replay", record)
    assert code == 2
    assert "\\x1b[2J:x" in err
    assert "\x1b" not in err


def test_no_html_of_a_record_is_passed_on(record, call, tmp_path):
    script = "<script>alert(1)</script>"
    picture, rows = f"![x](http://x/{script})", {"lagtuner": {script: 1.0}}
    edit(
        record / "config.yaml",
        model={"name": "mlp", "hidden": script},
        published={"source": script, "note": picture, "rows": rows},
    )
    edit(record / "summary.json", status=script, error=script, profile=script)
    edit(
        record / "environment.json",
        command=["raysync", f"```\n{script}"],
        python=script,
        platform=script,
        packages={script: script},
    )
    text = call("report", "--format", "md", record)[1]
    outside, fence, inside = text.partition("````sh\n")
    assert fence
    assert "&lt;script>" in outside
    assert "<script" not in outside
    assert "](http" not in outside
    assert inside.count("````") == 1
    assert inside.endswith("````\n")
    page = tmp_path / "page.html"
    assert call("report", "--output", page, record)[0] == 0
    assert script not in page.read_text()


def test_markdown_of_texts():
    assert plain("a < b & c\n# d") == "a &lt; b &amp; c # d"
    assert plain("[x](y) [z][w] [1.5, 2.0]") == "[x]\\(y) [z]\\[w] [1.5, 2.0]"


@pytest.mark.parametrize("name", ["pushes", "evaluations"])
def test_a_table_with_columns_of_another_raysync_is_read_from_the_journal(record, name):
    expected = getattr(raysync.load(record), name)
    file = record / f"{name}.parquet"
    table = pq.read_table(file)
    pq.write_table(table.drop_columns([table.column_names[0]]), file)
    assert getattr(raysync.load(record), name).equals(expected)
    assert collect([record]).runs


def test_a_trace_needs_no_metric_in_the_summary(record, tmp_path):
    edit(record / "summary.json", lambda summary: summary.pop("metric"))
    write_trace(raysync.load(record), tmp_path / "trace.json")
