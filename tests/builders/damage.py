"""Damages records, by a seed: what a disk, an editor, or somebody who means harm may make
of them.
"""

import hashlib
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

HARM = "tests.builders.damage:called"
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
    HARM,
    "fast-0#1",
    [],
    [1],
    {},
    {"name": "asp"},
    {"name": HARM},
    json.loads("[" * 60 + "]" * 60),
    10**8,
    "m7/fast-0#1",
    [["fast-0#1", 0]],
]
"""What takes the place of a value."""
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
OTHER_TYPES = [
    pa.null(),
    pa.list_(pa.int64()),
    pa.struct([("x", pa.int64())]),
    pa.decimal128(38, 9),
    pa.binary(),
    pa.timestamp("ns"),
    pa.dictionary(pa.int8(), pa.string()),
]

CALLS = []


def called(*arguments, **more):
    """Stands for what harms when a record makes raysync call it."""
    CALLS.append((arguments, more))


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


def damage(record, random):
    """Damage one file of a record, in one of many ways; returns in which, in words."""
    file = random.choice(sorted(path for path in record.rglob("*") if path.is_file()))
    if random.random() < 0.1:
        what = random.choice(list(NO_FILES))
        put(what, file)
    else:
        what = random.choice(WAYS.get(file.suffix, [_other_bytes]))(file, random)
    return f"{file.name}: {what}"


def checkpoint_damaged(folder, random):
    """Damage the contents of one file of a checkpoint, and let its manifest fit; returns how, in
    words.
    """
    file = random.choice(sorted(folder.iterdir()))
    if file.suffix != ".json":
        what = _other_tensors(file, random)
    elif random.random() < 0.2:
        file.write_text(json.dumps(random.choice(VALUES)))
        what = file.read_text()[:40]
    else:
        what = _other_value(file, random)
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


def _other_value(file, random):
    """Change a value of a file or, with lines, of one of them: of one in three, of the header."""
    read, write = (
        (yaml.safe_load, yaml.safe_dump) if file.suffix == ".yaml" else (json.loads, json.dumps)
    )
    text = file.read_text()
    lines = text.splitlines() if file.suffix == ".jsonl" else [text]
    whole = max(1, len(lines) - 1)  # the last may be cut off
    at = 0 if random.random() < 0.3 else random.randrange(whole)
    data = read(lines[at])
    what = _changed(data, random)
    lines[at] = write(data)
    file.write_text("\n".join(lines) + "\n" * text.endswith("\n"))
    return f"line {at}: {what}"


def _other_lines(file, random):
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


def _other_bytes(file, random):
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
            others = [b"", b"\0" * 100, b"\xff\xfe", deep, b"null\n", b"3\n", b"[]\n"]
            file.write_bytes(random.choice(others))
            return "something else"
    for _ in range(random.choice((1, 1, 5))):
        data[random.randrange(len(data))] = random.randrange(256)
    file.write_bytes(data)
    return "other bytes"


def _other_table(file, random):
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
            other = random.choice([float("nan"), float("inf"), -1e300])
            values[random.randrange(len(values))] = other
        case _:
            values = [str(value) for value in values]
    pq.write_table(table.set_column(at, name, pa.array(values)), file)
    return f"other values in {name}"


def _other_tensors(file, random):
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


WAYS = {
    ".jsonl": [_other_lines, _other_value, _other_value, _other_value, _other_bytes],
    ".json": [_other_value, _other_value, _other_bytes],
    ".yaml": [_other_value, _other_value, _other_bytes],
    ".parquet": [_other_table, _other_bytes],
}


def _changed(data, random, values=VALUES):
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
