"""Tables of step times: the same steps in both shapes, what says which column is which, and what is
refused.
"""

import gzip
import os
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from raysync.config import step_tables
from raysync.config.step_tables import read_table
from raysync.config.table_columns import ColumnTitles, option, parse_columns
from raysync.errors import ConfigError
from tests.builders.messages import naming, tells

ROWS = 12
UNITS = {
    "": 1,
    "_s": 1,
    "_ms": 1e3,
    " (ms)": 1e3,
    "Ms": 1e3,
    "_us": 1e6,
    " [µs]": 1e6,
    ".microseconds": 1e6,
}
NAMED = [
    ["rank0", "rank1", "rank2"],
    ["gpu 0", "gpu 1", "gpu 10"],
    ["n1", "n2", "n3"],
    ["fast-0", "fast-1", "slow-0"],
    ["0", "1", "2"],
]
PLACED = [["a", "b", "c"], ["fast", "slow", "slower"], ["x.example.org", "y.example.org", "z"]]
LOSSES = ("loss", "train_loss", "Loss 0", "train/loss")
WRITERS = {".csv": ",", ".CSV": ",", ".tsv": "\t", ".csv.gz": ";", ".CSV.GZ": ",", ".parquet": ""}


def steps(seed=0, ranks=3, rows=ROWS):
    return np.random.default_rng(seed).lognormal(-2, 0.3, (rows, ranks)).round(6)


def shown(cell, decimal):
    text = f"{cell:.9g}" if isinstance(cell, float) else str(cell)
    return text.replace(".", decimal)


def write(folder, columns, suffix=".csv", separator=",", decimal="."):
    path = folder / f"steps{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    lines = [separator.join(columns)]
    lines += [
        separator.join(shown(c, decimal) for c in row)
        for row in zip(*columns.values(), strict=True)
    ]
    data = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(data) if suffix.lower().endswith("gz") else data)
    return path


def check(table, names, expected):
    assert list(table.steps) == names
    for number, name in enumerate(names):
        assert table.steps[name] == pytest.approx(expected[:, number], rel=1e-6)


def extras(expected, first):
    """Return columns that are no ranks, by their names."""
    rows = len(expected)
    return {
        "epoch": [row // 5 for row in range(rows)],
        "iteration": [first + row for row in range(rows)],
        "total": expected.sum(axis=1).tolist(),
        "max": expected.max(axis=1).tolist(),
        "elapsed": expected.max(axis=1).cumsum().tolist(),
        **{name: [1 / (1 + row) for row in range(rows)] for name in LOSSES},
        "batch_size": [32 + row % 2 for row in range(rows)],
    }


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 99),
    names=st.sampled_from([*NAMED, *PLACED]),
    unit=st.sampled_from(list(UNITS)),
    suffix=st.sampled_from(list(WRITERS)),
    comma=st.booleans(),
    first=st.integers(0, 1),
    beside=st.sets(st.sampled_from(list(extras(steps(), 0)))),
    before=st.booleans(),
)
def test_the_same_steps_in_a_wide_table(
    tmp_path, seed, names, unit, suffix, comma, first, beside, before
):
    expected = steps(seed)
    if names[0] == "0" and not beside:
        names = NAMED[0]  # a line of numbers alone names nothing
    ranks = {
        f"{name}{unit}": (expected[:, number] * UNITS[unit]).tolist()
        for number, name in enumerate(names)
    }
    more = {name: cells for name, cells in extras(expected, first).items() if name in beside}
    columns = {**more, **ranks} if before else {**ranks, **more}
    separator = WRITERS[suffix]
    decimal = "," if comma and separator not in (",", "") else "."
    table = read_table(write(tmp_path, columns, suffix, separator, decimal))
    check(table, names, expected)
    assert set(table.left_out) == beside - {"epoch", "iteration"}
    assert table.unit == ("s" if UNITS[unit] == 1 else "ms" if UNITS[unit] == 1e3 else "us")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 99),
    rank=st.sampled_from(["worker", "rank", "host", "Hostname", "gpu_id", "node"]),
    is_said=st.booleans(),
    step=st.sampled_from(["step", "iter", "Iteration", "batch", "global_step", "number"]),
    time=st.sampled_from(["seconds", "duration", "time", "step_time", "iter_time", "took"]),
    unit=st.sampled_from(list(UNITS)),
    suffix=st.sampled_from(list(WRITERS)),
    first=st.integers(0, 1),
    epochs=st.booleans(),
    shuffle=st.randoms(use_true_random=False),
)
def test_the_same_steps_in_a_long_table(
    tmp_path, seed, rank, is_said, step, time, unit, suffix, first, epochs, shuffle
):
    expected = steps(seed)
    if time == "seconds":
        unit = ""
    is_said |= rank == "gpu_id" or step == "number" or time in ("time", "took")
    said = ColumnTitles((rank,), (step,), (f"{time}{unit}",)) if is_said else ColumnTitles()
    each = 4 if epochs else ROWS
    rows = [
        {
            rank: f"n{number}",
            **({"epoch": row // each} if epochs else {}),
            step: first + row % each,
            f"{time}{unit}": expected[row, number] * UNITS[unit],
            "loss": 0.1,
        }
        for row in range(ROWS)
        for number in range(3)
    ]
    shuffle.shuffle(rows)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    table = read_table(write(tmp_path, columns, suffix, WRITERS[suffix]), said)
    check(table, ["n0", "n1", "n2"], expected)
    assert table.left_out == ("loss",)


@pytest.mark.parametrize("second", ["local_rank", "gpu"])
def test_a_host_and_a_rank_in_it_name_a_worker(tmp_path, second):
    expected = steps(ranks=4)
    rows = [
        (f"n{number // 2}", number % 2, number, row, expected[row, number])
        for row in range(ROWS)
        for number in range(4)
    ]
    host, local, rank, step, seconds = map(list, zip(*rows, strict=True))
    columns = {"host": host, second: local, "step": step, "seconds": seconds}
    path = write(tmp_path, columns)
    check(read_table(path), ["n0 0", "n0 1", "n1 0", "n1 1"], expected)
    check(read_table(write(tmp_path, {**columns, "rank": rank})), ["0", "1", "2", "3"], expected)
    path = write(tmp_path, {"machine": host, "card": local, "step": step, "seconds": seconds})
    table = read_table(path, parse_columns("worker=machine,card"))
    check(table, ["n0 0", "n0 1", "n1 0", "n1 1"], expected)
    with pytest.raises(ValueError, match=naming("line 3: step 0 'n0' line 2 --columns worker=")):
        read_table(path, parse_columns("worker=machine"))


def test_a_table_without_workers_is_one_rank_called_like_its_file(tmp_path):
    columns = {"step": [0, 1], "seconds": [0.5, 0.25]}
    assert read_table(write(tmp_path, columns, ".csv.gz")).steps == {"steps": (0.5, 0.25)}
    assert list(read_table(write(tmp_path, columns), rank="r1").steps) == ["r1"]
    assert read_table(write(tmp_path, {"step_time": [0.5, 0.25]})).steps == {"steps": (0.5, 0.25)}


def test_steps_may_go_on_by_more_than_one(tmp_path):
    columns = {"epoch": [0, 0, 1, 4], "step": [49, 99, 149, 199], "seconds": [0.5, 1.0, 2.0, 4.0]}
    assert read_table(write(tmp_path, columns)).steps == {"steps": (0.5, 1.0, 2.0, 4.0)}
    columns["epoch"] = [0.5, 1.0, 1.5, 2.0]
    assert read_table(write(tmp_path, columns)).steps == {"steps": (0.5, 1.0, 2.0, 4.0)}
    columns = {"epoch": [0, 0, 1, 1], "step": [0, 50, 0, 50], "rank0": [0.5, 1.0, 2.0, 4.0]}
    assert read_table(write(tmp_path, columns)).steps == {"rank0": (0.5, 1.0, 2.0, 4.0)}


@pytest.mark.parametrize("empty", ["", "nan"])
def test_rows_without_seconds_that_another_column_fills_are_left_out_and_counted(tmp_path, empty):
    columns = {
        "step": [49, 49, 99, ""],
        "step_time": [0.5, empty, 0.25, empty],
        "val_loss": ["", 0.7, "", 0.6],
    }
    table = read_table(write(tmp_path, columns))
    assert table.steps == {"steps": (0.5, 0.25)}
    assert table.rows_left_out == 2
    wide = {"rank0": [0.5, empty, 0.25], "rank1": [1.0, empty, 2.0], "note": ["", "saved", ""]}
    table = read_table(write(tmp_path, wide))
    assert table.steps == {"rank0": (0.5, 0.25), "rank1": (1.0, 2.0)}
    assert table.rows_left_out == 1
    for row, place in (({"val_loss": [""] * 4}, "line 3:"), ({"step_time": [""] * 4}, "step_time")):
        with pytest.raises(ValueError, match=naming(place)):
            read_table(write(tmp_path, {**columns, "step": [0, 1, 2, 3], **row}))


CHART = {
    "Step": [0, 1],
    "run - rank0/step_time": [0.5, 0.25],
    "run - rank0/step_time__MIN": [0.5, 0.25],
    "run - rank1/step_time": [1.0, 2.0],
    "run - rank1/train_loss": [3.0, 4.0],
}


def test_a_pattern_names_the_columns_of_ranks(tmp_path):
    table = read_table(write(tmp_path, CHART), parse_columns("worker=*step_time"))
    assert table.steps == {"run - rank0": (0.5, 0.25), "run - rank1": (1.0, 2.0)}
    assert table.left_out == ("run - rank0/step_time__MIN", "run - rank1/train_loss")
    columns = {"t": [7, 8], "a (ms)": [500, 250], "a [x]": [1.0, 2.0], "loss": [1.0, 2.0]}
    path = write(tmp_path, columns)
    assert read_table(path, parse_columns("worker=a (*,step=t")).steps == {"a": (0.5, 0.25)}
    table = read_table(path, parse_columns("worker=*,step=t,unit=s"))
    assert table.steps == {"a": (500, 250), "a [x]": (1.0, 2.0)}


def test_the_unit_is_that_of_the_title_or_of_the_user(tmp_path):
    path = write(tmp_path, {"rank0": [500, 250]})
    assert read_table(path).steps == {"rank0": (500, 250)}
    assert read_table(path, parse_columns("unit=ms")).steps == {"rank0": (0.5, 0.25)}
    path = write(tmp_path, {"rank0_ms": [500], "rank1": [500]})
    assert read_table(path, parse_columns("unit=us")).steps["rank1"] == (0.0005,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("worker", "'worker' worker="),
        ("rank=a", "'rank=a' worker="),
        ("seconds=", "'seconds=' seconds="),
        ("step=a,step=b", "step 1"),
        ("worker=a,b,c", "worker 2"),
        ("worker=*a,b", "worker="),
        ("worker=*a,seconds=b", "seconds="),
        ("unit=hours", "ms"),
        ("", "--columns"),
    ],
)
def test_what_is_wrong_with_the_columns_that_are_said(text, says):
    with pytest.raises(ConfigError, match=naming(f"--columns {text} {says}" if text else says)):
        parse_columns(text)


def test_titles_with_commas_stand_in_quotation_marks():
    assert parse_columns('"seconds=took, net",step=a').seconds == ("took, net",)
    assert parse_columns(shlex.split(option("seconds", "took, net"))[1]).seconds == ("took, net",)


def test_the_index_that_pandas_writes_is_the_step(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",rank0,rank1\n0,0.5,0.2\n1,0.25,0.25\n")
    assert read_table(path).steps == {"rank0": (0.5, 0.25), "rank1": (0.2, 0.25)}


RANKS = {f"rank{number}": steps()[:, number].tolist() for number in range(3)}
LONG = {
    "host": ["a", "b"] * 6,
    "step": [row // 2 for row in range(12)],
    "duration": steps(ranks=1)[:, 0].tolist(),
}
REFUSED = {
    "one unit for some": ({"rank0_ms": RANKS["rank0"], "rank1": RANKS["rank1"]}, "rank0_ms unit="),
    "the same rank in two units": ({**RANKS, "rank0_ms": RANKS["rank0"]}, "rank0"),
    "a rank of text": ({**RANKS, "rank3": ["x"] * 12}, "line 2: rank3"),
    "numbers of other things": ({**RANKS, "top5": RANKS["rank0"]}, "'top5' worker=rank*"),
    "two durations": ({**LONG, "step_time": LONG["duration"]}, "step_time seconds=duration"),
    "ranks and a duration": ({**RANKS, "step_time": RANKS["rank0"]}, "rank0 seconds=step_time"),
    "no durations": ({"host": LONG["host"], "step": LONG["step"], "foo": [1] * 12}, "seconds=foo"),
    "a clock": ({"step": LONG["step"], "time": [1 + row for row in range(12)]}, "seconds=time"),
    "steps with a gap": ({**RANKS, "batch": [*range(6), *range(7, 13)]}, "line 8: batch 7 6"),
    "no rank at all": ({"epoch": [1, 2], "loss": [0.5, 0.25]}, "loss --columns"),
    "TensorBoard's": ({"Wall time": [1, 2], "Step": [0, 1], "Value": [1, 2]}, "seconds=Value"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_understood_is_refused_with_the_column_and_the_option(tmp_path, what):
    columns, says = REFUSED[what]
    path = write(tmp_path, columns)
    with pytest.raises(ValueError, match=r"steps\.csv: ") as raised:
        read_table(path)
    assert tells(str(raised.value), says)


def test_columns_that_are_said_and_not_there_are_named(tmp_path):
    path = write(tmp_path, LONG)
    for said in ("worker=machine", "step=machine", "seconds=machine"):
        with pytest.raises(ValueError, match=naming("steps.csv: 'machine' host step duration")):
            read_table(path, parse_columns(said))
    with pytest.raises(ValueError, match=naming("'*machine' host duration")):
        read_table(path, parse_columns("worker=*machine"))


def test_numbers_with_points_and_with_commas_in_one_table_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a;b\n0,5;0.5\n")
    with pytest.raises(ValueError, match="'b'"):
        read_table(path)
    path.write_text("a;b\n1.000,5;2.000,5\n")
    with pytest.raises(ValueError, match="'a'"):
        read_table(path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_more_columns_rows_or_workers_than_are_read_are_refused(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(step_tables, "MOST_RANKS", 20)
    monkeypatch.setattr(step_tables, "MOST_CELLS", 30)
    wide = {f"rank{number}": [0.5] for number in range(21)}
    tall = {"rank0": [0.5] * 31}
    for columns in (wide, tall):
        with pytest.raises(ValueError, match=r"steps\."):
            read_table(write(tmp_path, columns, suffix))
    monkeypatch.setattr(step_tables, "MOST_CELLS", 1000)
    long = {"worker": list(range(21)), "step": [0] * 21, "seconds": [0.5] * 21}
    with pytest.raises(ValueError, match="20 workers"):
        read_table(write(tmp_path, long, suffix))


def test_of_hundreds_of_thousands_of_columns_only_the_names_are_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",".join(f"rank{number}" for number in range(300_000)) + "\n")
    with pytest.raises(ValueError, match="300,000"):
        read_table(path)


@pytest.mark.parametrize("cell", ["1" + "0" * 400, "1e400", "1" + "0" * 5000, "\0"])
def test_numbers_without_bounds_are_refused_with_their_line(tmp_path, cell):
    path = tmp_path / "t.csv"
    for text in (f"a,b\n1,{cell}\n", f"step,a\n{cell}.5,1\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match="line 2") as raised:
            read_table(path)
        assert len(str(raised.value)) < 400


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_a_pipe_does_not_hold_up(tmp_path, suffix):
    os.mkfifo(tmp_path / f"t{suffix}")
    with pytest.raises(ConfigError, match=f"t{suffix}"):
        read_table(tmp_path / f"t{suffix}")


@pytest.mark.parametrize("text", ["a,b\n1,1e308\n1,1e308\n", "step,a\n0,1e308\n1,1e308\n"])
def test_durations_whose_sum_is_not_finite_are_refused(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match="line 2"):
        read_table(path)
