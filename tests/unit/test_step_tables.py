"""Tables of step times as people write them: the same steps in every form, and what is no rank."""

import gzip
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from raysync.config import step_tables
from raysync.config.step_tables import read_table
from raysync.errors import ConfigError

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
        "loss": [1 / (1 + row) for row in range(rows)],
        "note_ms": [5.0 + row % 3 for row in range(rows)],
        "batch_size": [32 + row % 2 for row in range(rows)],
        "phase": ["warm" if row < 2 else "hot" for row in range(rows)],
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
        names = ["rank0", *names[1:]]  # a line of numbers alone names nothing
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
    assert set(table.left_out) == beside


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 99),
    rank=st.sampled_from(["worker", "rank", "host", "Hostname", "gpu_id", "node"]),
    step=st.sampled_from(["step", "iter", "Iteration", "batch", "global_step", "batch_idx"]),
    time=st.sampled_from(["seconds", "duration", "time", "step_time", "iter_time", "step"]),
    unit=st.sampled_from(list(UNITS)),
    suffix=st.sampled_from(list(WRITERS)),
    first=st.integers(0, 1),
    epochs=st.booleans(),
    shuffle=st.randoms(use_true_random=False),
)
def test_the_same_steps_in_a_long_table(
    tmp_path, seed, rank, step, time, unit, suffix, first, epochs, shuffle
):
    expected = steps(seed)
    if time == "seconds":
        unit = ""
    elif time == "step" and UNITS[unit] == 1:
        unit = "_s"
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
    table = read_table(write(tmp_path, columns, suffix, WRITERS[suffix]))
    check(table, ["n0", "n1", "n2"], expected)


def test_hosts_and_gpus_together_are_ranks_unless_one_of_them_tells_all_apart(tmp_path):
    expected = steps(ranks=4)
    rows = [
        (f"n{number // 2}", number % 2, number, row, expected[row, number])
        for row in range(ROWS)
        for number in range(4)
    ]
    host, gpu, rank, step, seconds = map(list, zip(*rows, strict=True))
    columns = {"host": host, "gpu": gpu, "step": step, "seconds": seconds}
    table = read_table(write(tmp_path, columns))
    check(table, ["n0 0", "n0 1", "n1 0", "n1 1"], expected)
    table = read_table(write(tmp_path, {**columns, "rank": rank}))
    check(table, ["0", "1", "2", "3"], expected)


COUNTERS = {
    "counts": lambda expected: [7 + row for row in range(len(expected))],
    "counts down": lambda expected: [99.5 - row for row in range(len(expected))],
    "whole": lambda expected: [32 + row % 2 for row in range(len(expected))],
    "runs on": lambda expected: expected.max(axis=1).cumsum().tolist(),
    "adds up": lambda expected: expected.sum(axis=1).tolist(),
    "mean": lambda expected: expected.mean(axis=1).tolist(),
    "largest": lambda expected: expected.max(axis=1).tolist(),
    "smallest": lambda expected: expected.min(axis=1).tolist(),
}


@pytest.mark.parametrize("names", [NAMED[0], PLACED[0]], ids=["named", "placed"])
@pytest.mark.parametrize("what", COUNTERS)
@pytest.mark.parametrize("seed", range(3))
def test_what_counts_runs_on_or_adds_up_is_no_rank_whatever_its_name(tmp_path, seed, what, names):
    expected = steps(seed)
    ranks = {name: expected[:, number].tolist() for number, name in enumerate(names)}
    table = read_table(write(tmp_path, {**ranks, "foo": COUNTERS[what](expected)}))
    check(table, names, expected)
    assert table.left_out == ("foo",)


def test_a_step_and_its_duration_may_have_one_name_but_for_the_unit(tmp_path):
    columns = {"host": ["a", "b"] * 2, "step": [0, 0, 1, 1], "step_ms": [500, 250, 125, 500]}
    assert read_table(write(tmp_path, columns)).steps == {"a": (0.5, 0.125), "b": (0.25, 0.5)}


def test_what_is_no_number_is_no_rank_where_ranks_are_named(tmp_path):
    expected = steps()
    ranks = {name: expected[:, number].tolist() for number, name in enumerate(NAMED[0])}
    columns = {**ranks, "foo": [1.5, "inf"] * (ROWS // 2), "bar": ["x", "1.5"] * (ROWS // 2)}
    table = read_table(write(tmp_path, columns))
    check(table, NAMED[0], expected)
    assert table.left_out == ("foo", "bar")


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
DOUBTFUL = {
    "a rank that runs on": ({**RANKS, "rank3": np.cumsum(RANKS["rank0"]).tolist()}, "rank3"),
    "a rank by its values alone": ({**RANKS, "spare": RANKS["rank1"]}, "spare"),
    "only counters": ({"foo": list(range(1, 13))}, "foo"),
    "one unit for some": ({"rank0_ms": RANKS["rank0"], "rank1": RANKS["rank1"]}, "rank0_ms"),
    "the same rank in two units": ({**RANKS, "rank0_ms": RANKS["rank0"]}, "rank0"),
    "a rank of text": ({**RANKS, "rank3": ["x"] * 12}, "rank3"),
    "two durations": ({**LONG, "step_time": LONG["duration"]}, "step_time"),
    "a clock for durations": ({**LONG, "duration": [0.5 + row for row in range(12)]}, "duration"),
    "no durations": ({"host": LONG["host"], "step": LONG["step"], "foo": LONG["step"]}, "seconds"),
    "steps with a gap": ({**RANKS, "batch": [*range(6), *range(7, 13)]}, "batch"),
    "no rank at all": ({"epoch": [1, 2], "loss": [0.5, 0.25]}, "epoch"),
}


@pytest.mark.parametrize("what", DOUBTFUL)
def test_a_table_in_doubt_is_refused_with_the_name_of_the_column(tmp_path, what):
    columns, name = DOUBTFUL[what]
    path = write(tmp_path, columns)
    with pytest.raises(ValueError, match=r"steps\.csv: ") as raised:
        read_table(path)
    assert name in str(raised.value)


def test_numbers_with_points_and_with_commas_in_one_table_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a;b\n0,5;0.5\n")
    with pytest.raises(ValueError, match="'b'"):
        read_table(path)
    path.write_text("a;b\n1.000,5;2.000,5\n")
    with pytest.raises(ValueError, match="'a'"):
        read_table(path)


def test_few_rows_of_whole_numbers_are_taken_at_their_word(tmp_path):
    assert list(read_table(write(tmp_path, {"a": [1, 2, 3], "b": [2, 4, 6]})).steps) == ["a", "b"]


def test_constant_and_equal_ranks_are_ranks(tmp_path):
    columns = {"a": [0.5] * 9, "b": [0.5] * 9, "c": [0.5] * 9, "d": [1.5] * 9}
    assert list(read_table(write(tmp_path, columns)).steps) == ["a", "b", "c", "d"]
    drawn = steps()[:, 0]
    columns = {"a": drawn.tolist(), "b": (drawn + 1).tolist(), "c": (drawn + 1).tolist()}
    assert list(read_table(write(tmp_path, columns)).steps) == ["a", "b", "c"]
    columns = {"a": drawn.tolist(), "b": (drawn * 1.0001).tolist(), "c": (drawn + 1e-5).tolist()}
    assert list(read_table(write(tmp_path, columns)).steps) == ["a", "b", "c"]


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
def test_what_is_no_plain_file_or_no_table_is_a_mistake_of_the_user(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="t.csv|t.parquet"):
        read_table(path)
    path.unlink()
    path.write_bytes(b"\0\1\2")
    with pytest.raises(ValueError, match="t.csv|t.parquet"):
        read_table(path)


@pytest.mark.parametrize("text", ["a,b\n1,1e308\n1,1e308\n", "step,a\n0,1e308\n1,1e308\n"])
def test_durations_whose_sum_is_not_finite_are_refused(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match="line 2"):
        read_table(path)
