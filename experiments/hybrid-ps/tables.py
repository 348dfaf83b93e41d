"""Puts measured beside published: reads the records of `raysync compare FILE` and writes the tables of README.md.

    python experiments/hybrid-ps/tables.py RUNS       RUNS holds hybrid-ps-mnist/ and hybrid-ps-fashion-mnist/
"""

import argparse
from pathlib import Path

import pandas as pd

import raysync

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- tables.py: begin -->\n", "<!-- tables.py: end -->\n"
PUBLISHED = {  # accuracy in %, seconds: papers' Tables 4 and 6, mean of ten runs on the authors' laptops
    ("hybrid-ps-mnist", "bsp"): (95.38, 33.24),
    ("hybrid-ps-mnist", "asp"): (94.94, 32.10),
    ("hybrid-ps-fashion-mnist", "bsp"): (30.91, 202.04),
    ("hybrid-ps-fashion-mnist", "asp"): (29.18, 283.07),
}
NAMES = {"bsp": "synchronous (`bsp`)", "asp": "asynchronous (`asp`)"}


def measured(runs: Path) -> pd.DataFrame:
    """The summaries of all records, one row a run."""
    folders = [folder for experiment, _ in PUBLISHED for folder in (runs / experiment).iterdir()]
    rows = [{"experiment": folder.parent.name, **raysync.load(folder).summary} for folder in dict.fromkeys(folders)]
    return pd.DataFrame(rows)


def spread(values: pd.Series, digits: int) -> str:
    """Mean and standard deviation over the seeds."""
    return f"{values.mean():.{digits}f} ± {values.std():.{digits}f}"


def table(runs: pd.DataFrame, experiment: str) -> str:
    """One experiment as Markdown."""
    lines = ["| baseline | accuracy %, measured | published | seconds, measured | published | samples/s | wait share | "
             "staleness mean / max | seeds |", "|---|---|---|---|---|---|---|---|---|"]
    for paradigm, name in NAMES.items():
        mine = runs[(runs.experiment == experiment) & (runs.paradigm == paradigm)]
        accuracy, seconds = PUBLISHED[experiment, paradigm]
        cells = [name, spread(100 * mine.final_accuracy, 2), f"{accuracy}", spread(mine.seconds, 1), f"{seconds}",
                 f"{mine.throughput_samples_per_s.mean():,.0f}", f"{mine.wait_fraction.mean():.0%}",
                 f"{mine.staleness_mean.mean():.1f} / {mine.staleness_max.max()}", ", ".join(map(str, sorted(mine.seed)))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    runs = measured(parser.parse_args().runs)
    text = (f"MNIST, `convnet` (the paper's Table 4):\n\n{table(runs, 'hybrid-ps-mnist')}\n\n"
            f"Fashion-MNIST, `fashion-cnn` (Table 6):\n\n{table(runs, 'hybrid-ps-fashion-mnist')}\n")
    page = README.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    README.write_text(head + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")
    print(text)
