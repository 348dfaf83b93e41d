"""Add what `tests.chaos` and its schedules have left to results/; a run or a batch that is there
already is replaced.

python experiments/chaos/keep.py FOLDER... --schedules FILE...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd

RESULTS = Path(__file__).parent / "results"


def rows_of(folder: Path) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Return the row of a run of `python -m tests.chaos`, and one for each kind of process."""
    result = json.loads((folder / "chaos.json").read_text(encoding="utf-8"))
    failures = [name for name, found in result["oracles"].items() if found != "ok"]
    counts = {"oracles": len(result["oracles"]), "oracles_failed": "; ".join(failures)}
    held = "; ".join(f"{count} {kind}" for kind, count in result["lost_with_nodes"].items())
    about = {"pending": result["pending"], "lost_with_nodes": held, **counts}
    run = {"run": folder.name, **result["figures"], **about}
    return run, [{"run": folder.name, **target} for target in result["targets"]]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, help="what --out of tests.chaos named")
    parser.add_argument("--schedules", nargs="*", default=[], help="files of schedules.py --write")
    arguments = parser.parse_args()
    if arguments.schedules:
        add("schedules", pd.concat(map(pd.read_csv, arguments.schedules)), "first")
    if arguments.folders:
        runs, targets = zip(*map(rows_of, arguments.folders), strict=True)
        add("ray", pd.DataFrame(runs), "run")
        add("targets", pd.DataFrame([row for rows in targets for row in rows]), "run")


def add(name: str, rows: pd.DataFrame, key: str) -> None:
    """Add rows to a table of results/, in place of those with the same key.

    A table from before a column was counted gets zeros there.
    """
    file = RESULTS / f"chaos.{name}.csv"
    before = pd.read_csv(file, keep_default_na=False)
    whole = pd.concat([before[~before[key].isin(rows[key])], rows])
    texts = ["oracles_failed", "lost_with_nodes"]
    whole = whole.fillna({text: "" for text in texts if text in whole}).fillna(0)
    numbers = whole.select_dtypes("float").columns
    whole = whole.astype({each: int for each in numbers if (whole[each] % 1 == 0).all()})
    whole.sort_values(key, kind="stable").to_csv(file, index=False)


if __name__ == "__main__":
    main()
