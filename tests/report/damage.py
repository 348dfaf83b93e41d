"""Damages records, by a seed: what a disk, an editor, or somebody who means harm may make
of them.
"""

import hashlib
import json
import os
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
    if random.random() < 0.1:
        name = random.choice(list(NO_FILES))
        put(name, file)
        return f"{file.name}: {name}"
    ways = {
        ".jsonl": [_lines, _line, _line, _line, _bytes],
        ".json": [_tree, _tree, _bytes],
        ".yaml": [_settings, _settings, _bytes],
        ".parquet": [_table, _bytes],
    }
    return f"{file.name}: {random.choice(ways.get(file.suffix, [_bytes]))(file, random)}"


def _sparse(file):
    file.touch()
    os.truncate(file, 1 << 40)


NO_FILES = {
    "pipe": os.mkfifo,
    "device": lambda file: file.symlink_to("/dev/zero"),
    "folder": lambda file: file.mkdir(),
    "loop": lambda file: file.symlink_to(file.name),
    "nowhere": lambda file: file.symlink_to("nowhere"),
    "a terabyte of zeros": _sparse,
    "10^400": lambda file: file.write_text("1" + "0" * 400),
    "10^10000": lambda file: file.write_text("1" + "0" * 10_000),
}
"""What can lie behind the name of a file -> what puts it there."""


def put(name, file):
    """Put something in a file's place."""
    file.unlink(missing_ok=True)
    NO_FILES[name](file)


def checkpoint_damaged(folder, random):
    """Damage the contents of one file of a checkpoint, and let its manifest fit; returns how, in
    words.
    """
    file = random.choice(sorted(folder.iterdir()))
    if file.suffix == ".json":
        data = json.loads(file.read_text())
        what = _changed(data, random)
        if random.random() < 0.2:
            data = random.choice(VALUES)
            what = f"{data!r:.40}"
        file.write_text(json.dumps(data))
    else:
        what = _tensors(file, random)
    signed(folder)
    return f"{file.name}: {what}"


def signed(folder):
    """Let the manifest of a checkpoint fit its files, where it is one."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    files = manifest.get("files") if isinstance(manifest, dict) else None
    for name, about in files.items() if isinstance(files, dict) else ():
        if isinstance(about, dict) and "/" not in name and (folder / name).is_file():
            data = (folder / name).read_bytes()
            about |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_text(json.dumps(manifest))


def _tensors(file, random):
    """Another value within the JSON of a state, or of the header that describes its tensors."""
    data = file.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    if random.random() < 0.8:
        state = json.loads(header["__metadata__"]["raysync_state"])
        what = _changed(state, random, [*VALUES, *TENSORS])
        header["__metadata__"]["raysync_state"] = json.dumps(state)
    else:
        what = _changed(header, random)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[begin:])
    return what


TENSORS = [
    {"$tensor": []},
    {"$tensor": {}},
    {"$tensor": "none"},
    {"$tensor": 10**30},
    {"$tensor": "server/version", "$strides": [1]},
    {"$tensor": "actors/server/exchange/stores/0/published", "$strides": [2**40]},
    {"$tensor": "actors/server/exchange/stores/0/published", "$strides": ["x"]},
    {"$tuple": 3},
]
"""What takes the place of a value in a state with tensors."""


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
    match random.randrange(5):
        case 0:
            pq.write_table(table.drop_columns([name]), file)
            return f"no column {name}"
        case 4:
            other = random.choice(OTHER_TYPES)
            pq.write_table(table.set_column(at, name, pa.nulls(len(table), other)), file)
            return f"{name} of type {other}"
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


OTHER_TYPES = [
    pa.null(),
    pa.list_(pa.int64()),
    pa.struct([("x", pa.int64())]),
    pa.decimal128(38, 9),
    pa.binary(),
    pa.timestamp("ns"),
    pa.dictionary(pa.int8(), pa.string()),
]


def _changed(data, random: Random, values=VALUES):
    """Change one value anywhere in a tree of lists and mappings, or leave it out."""
    where, path = data, []
    if not isinstance(data, dict | list):
        return "as it was"
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
        where[key] = random.choice(values)
        return f"{path}: {where[key]!r:.40}"
