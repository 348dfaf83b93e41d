"""Damages records, by a seed: what a disk, an editor, or somebody who means harm may make
of them.
"""

import json
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

DEEP = json.loads("[" * 60 + "]" * 60)
VALUES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    0.5,
    -2.5,
    10**30,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "nan",
    "-1",
    "\x1b]0;x\x07\x1b[2J",
    "\ud800",
    "<script>x</script>",
    "a\nb",
    "../..",
    "tests.report.damage:called",
    "fast-0#1",
    [],
    [1],
    {},
    {"name": "asp"},
    {"name": "tests.report.damage:called"},
    DEEP,
    10**8,
    "m7/fast-0#1",
    [["fast-0#1", 0]],
]
"""What takes the place of a value."""

CALLS = []


def called(*arguments, **more):
    """Stands for what harms when a record makes raysync call it."""
    CALLS.append((arguments, more))


def damage(record, random):
    """Damage one file of a record, in one of many ways; returns in which, in words."""
    file = random.choice(sorted(path for path in record.rglob("*") if path.is_file()))
    ways = {
        ".jsonl": [_lines, _line, _line, _line, _bytes],
        ".json": [_tree, _tree, _bytes],
        ".yaml": [_settings, _settings, _bytes],
        ".parquet": [_table, _bytes],
    }
    return f"{file.name}: {random.choice(ways.get(file.suffix, [_bytes]))(file, random)}"


def _bytes(file, random):
    data = bytearray(file.read_bytes())
    match random.randrange(4):
        case 0:
            file.unlink()
            return "gone"
        case 1:
            at = random.randrange(len(data) + 1)
            file.write_bytes(data[:at])
            return f"cut at {at}"
        case 2:
            # Deeper YAML: tests/unit/test_yaml_reading.py.
            deep = b"[" * (100_000 if file.suffix != ".yaml" else 100)
            file.write_bytes(
                random.choice([b"", b"\0" * 100, b"\xff\xfe", deep, b"null\n", b"3\n", b"[]\n"])
            )
            return "something else"
    for _ in range(random.choice((1, 1, 5))):
        data[random.randrange(len(data))] = random.randrange(256)
    file.write_bytes(data)
    return "other bytes"


def _lines(file, random):
    lines = file.read_bytes().splitlines(keepends=True)
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(4):
        case 0:
            del lines[one]
        case 1:
            lines.insert(other, lines[one])
        case 2:
            lines[one], lines[other] = lines[other], lines[one]
        case 3:
            del lines[min(one, other) : max(one, other)]
    file.write_bytes(b"".join(lines))
    return f"lines {one}, {other}"


def _line(file, random):
    """Another value within a line; of one in three, within the header."""
    lines = file.read_text().splitlines()
    at = 0 if random.random() < 0.3 else random.randrange(len(lines) - 1)  # the last may be cut off
    data = json.loads(lines[at])
    what = _changed(data, random)
    lines[at] = json.dumps(data)
    file.write_text("\n".join(lines) + "\n" * file.read_text().endswith("\n"))
    return f"line {at}: {what}"


def _tree(file, random):
    data = json.loads(file.read_text())
    what = _changed(data, random)
    file.write_text(json.dumps(data))
    return what


def _settings(file, random):
    data = yaml.safe_load(file.read_text())
    what = _changed(data, random)
    file.write_text(yaml.safe_dump(data, allow_unicode=False))
    return what


def _table(file, random):
    table = pq.read_table(file)
    name = random.choice(table.column_names)
    at = table.column_names.index(name)
    values = table.column(name).to_pylist()
    match random.randrange(4):
        case 0:
            pq.write_table(table.drop_columns([name]), file)
            return f"no column {name}"
        case 1 if values:
            values[random.randrange(len(values))] = None
        case 2 if values and table.column(name).type == pa.float64():
            values[random.randrange(len(values))] = random.choice(
                [float("nan"), float("inf"), -1e300]
            )
        case _:
            values = [str(value) for value in values]
    pq.write_table(table.set_column(at, name, pa.array(values)), file)
    return f"other values in {name}"


def _changed(data, random: Random):
    """Change one value anywhere in a tree of lists and mappings, or leave it out."""
    where, path = data, []
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not keys:
            where["new" if isinstance(where, dict) else slice(0)] = ["x"]
            return f"{path}: more"
        key = random.choice(keys)
        path.append(key)
        if isinstance(where[key], dict | list) and where[key] and random.random() < 0.8:
            where = where[key]
            continue
        if random.random() < 0.15:
            del where[key]
            return f"{path}: none"
        where[key] = random.choice(VALUES)
        return f"{path}: {where[key]!r:.40}"
