"""Take over what `raysync chaos` and schedules.py have left into results/.

python experiments/chaos/keep.py FOLDER... --schedules FILE...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd

RESULTS = Path(__file__).parent / "results"


def rows_of(folder: Path) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Return the row of a run of `raysync chaos`, and one for each kind of process."""
    result = json.loads((folder / "chaos.json").read_text(encoding="utf-8"))
    failures = [name for name, found in result["oracles"].items() if found != "ok"]
    counts = {"oracles": len(result["oracles"]), "oracles_failed": "; ".join(failures)}
    run = {"run": folder.name, **result["figures"], "pending": result["pending"], **counts}
    return run, [{"run": folder.name, **target} for target in result["targets"]]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, help="what --out of raysync chaos named")
    parser.add_argument("--schedules", nargs="*", default=[], help="files of schedules.py --write")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if arguments.schedules:
        rows = pd.concat(map(pd.read_csv, arguments.schedules)).sort_values("first")
        rows.to_csv(RESULTS / "chaos.schedules.csv", index=False)
    if arguments.folders:
        runs, targets = zip(*map(rows_of, arguments.folders), strict=True)
        pd.DataFrame(runs).to_csv(RESULTS / "chaos.ray.csv", index=False)
        pd.DataFrame([row for rows in targets for row in rows]).to_csv(
            RESULTS / "chaos.targets.csv", index=False
        )


if __name__ == "__main__":
    main()
