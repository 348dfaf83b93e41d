"""Files that a test writes."""

import json

import yaml


def write(path, text):
    path.write_text(text)
    return str(path)


def edit(file, change=None, **values):
    """Change the mapping in a JSON or YAML file, or in a journal's first line: by a function, or
    some of its keys.
    """
    is_yaml = file.suffix == ".yaml"
    first, newline, rest = file.read_text(), "", ""
    if file.suffix == ".jsonl":
        first, newline, rest = first.partition("\n")
    data = yaml.safe_load(first) if is_yaml else json.loads(first)
    if change is not None:
        change(data)
    data |= values
    file.write_text((yaml.safe_dump(data) if is_yaml else json.dumps(data)) + newline + rest)


def times_in(folder):
    return {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
