"""Shared by the benchmarks: ratios with an interval, and tables of them in results/."""

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

from labtables import Results, finished, markdown, tabulate  # noqa: F401  (for the scripts here)

HERE = Results(Path(__file__).parent)


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
    """Print what `measure` returns; with --write, write it into results/SCRIPT.md as well."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into results/ as well")
    write = parser.parse_args().write
    text = measure()
    print(text)
    if write:
        HERE.write_measured(Path(script).stem, text)
