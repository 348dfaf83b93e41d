"""Files that a test writes."""

import json


def write(path, text):
    path.write_text(text)
    return str(path)


def change_json(path, **values):
    """Replace some values of a file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def times_in(folder):
    return {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
