"""The guard of a change that must not change behaviour: a few hundred virtual runs, byte for byte.

    python -m tests.same_runs BEFORE               the runs of the checkout BEFORE beside this one's
    python -m tests.same_runs BEFORE --only ssp    those whose name has `ssp`
    python -m tests.same_runs --write FILE         the digests of this checkout alone

Each run is an experiment of the public configuration: a paradigm in a setting (unequal workers,
links, faults, servers, sizes, optimizers, local steps, codecs, stops, resumptions). Compared are
the journal, the trained model, the rows of pushes, evaluations and the summary; where a run is
refused, that it is. A setting that the change renames is translated here, in `TRANSLATED`, and
never in the product.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parents[1]

TRANSLATED = {}
"""A setting's dotted name before -> its name in this checkout."""


def cases(only=""):
    """Name -> settings of every run."""
    known = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))

    def whole(like=None, **setting):
        return (whole(**known["settings"][like]) if like else {}) | setting

    return {
        f"{paradigm}/{name}": whole(**setting, engine="virtual", seed=3, paradigm=choice)
        for name, setting in known["settings"].items()
        for paradigm, choice in known["paradigms"].items()
        if only in f"{paradigm}/{name}"
    }


def translated(settings, names):
    """Settings with other names of some of them."""
    settings = json.loads(json.dumps(settings))
    for before, after in names.items():
        *parents, last = before.split(".")
        block = settings
        for key in parents:
            block = block.get(key, {}) if isinstance(block, dict) else {}
        if last in block:
            block[after.rpartition(".")[2]] = block.pop(last)
    return settings


def digests(settings):
    """What a run leaves, in digests; or that it is refused."""
    import raysync
    from raysync.errors import ConfigError, RunFailed

    overrides = settings.pop("resumes_with", None)
    with tempfile.TemporaryDirectory() as folder:
        try:
            raysync.run(settings | {"output": folder})
        except ConfigError as error:
            return {"refused": str(error)}
        except RunFailed:
            pass  # its record stays
        [path] = Path(folder).glob("*/*")
        if overrides is not None and raysync.load(path).summary["status"] == "stopped":
            raysync.resume(path, overrides=overrides)
        record = raysync.load(path)
        left = {
            file.name: digest(file.read_bytes())
            for file in sorted(path.iterdir())
            if file.name == "journal.jsonl" or file.suffix == ".safetensors"
        }
        for name in ("pushes", "evaluations"):
            rows = getattr(record, name)
            left[name] = digest(rows[sorted(rows.columns)].to_csv(index=False).encode())
        untimed = {key: value for key, value in record.summary.items() if key != "wall_seconds"}
        return left | {"summary": digest(json.dumps(untimed, sort_keys=True).encode())}


def digest(content):
    return hashlib.sha256(content).hexdigest()


def write(path, only, names):
    """Run all cases here, and write their digests."""
    found = {name: digests(translated(case, names)) for name, case in cases(only).items()}
    Path(path).write_text(json.dumps(found, indent=1), encoding="utf-8")


def start(checkout, path, *arguments):
    """Start the runs of a checkout, which need not have this file."""
    command = [sys.executable, str(Path(__file__).resolve()), "--write", str(path), *arguments]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    return subprocess.Popen(command, env=environment, cwd=checkout, stdout=subprocess.DEVNULL)


def compare(before, after):
    """Print how the runs of two checkouts differ; return how many do."""
    different = 0
    for name, was in before.items():
        now = after[name]
        parts = sorted(key for key in was.keys() | now.keys() if was.get(key) != now.get(key))
        if parts and "refused" not in was.keys() & now.keys():  # the words may differ
            different += 1
            print(f"{name}: {', '.join(parts)} differ")
    refused = sum("refused" in was for was in before.values())
    print(f"{len(before)} runs, {refused} of them refused before: {different} differ")
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", nargs="?", help="another checkout")
    parser.add_argument("--only", default="", help="a part of the names of runs")
    parser.add_argument("--write", help="the file for the digests of one checkout alone")
    parser.add_argument("--translate", action="store_true", help="use this checkout's names")
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.write, arguments.only, TRANSLATED if arguments.translate else {})
        return 0
    if arguments.before is None:
        parser.error("name another checkout, or --write FILE")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, "before.json"), Path(folder, "after.json")]
        only = ["--only", arguments.only]
        runs = [
            start(arguments.before, paths[0], *only),
            start(HERE, paths[1], *only, "--translate"),
        ]
        if max(run.wait() for run in runs):
            return 2
        return min(1, compare(*(json.loads(path.read_text()) for path in paths)))


if __name__ == "__main__":
    sys.exit(main())
