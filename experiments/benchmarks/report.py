"""Shared by the benchmarks: ratios with an interval, and their tables in notes.md."""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from scipy.stats import bootstrap

sys.path.insert(0, str(Path(__file__).parents[1]))

from labtables import finished, markdown, tabulate, write_into  # noqa: F401  (for the scripts here)

NOTES = Path(__file__).with_name("notes.md")


def interval(values: Sequence[float]) -> str:
    """Return the median with its 95 % percentile bootstrap interval."""
    low, high = bootstrap((values,), np.median, method="percentile", rng=0).confidence_interval
    return f"{median(values):.2f} ({low:.2f} to {high:.2f})"


def measured_on() -> str:
    """Return the machine and the day."""
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, torch"
        f" {torch.__version__}, {time.strftime('%Y-%m-%d')}.\n"
    )


def main(script: str, about: str, measure: Callable[[], str]) -> None:
    """Print what `measure` returns; with --write, put it into notes.md between the marks of the
    script as well.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into notes.md")
    write = parser.parse_args().write
    text = measure()
    print(text)
    if write:
        write_into(NOTES, Path(script).name, text)
