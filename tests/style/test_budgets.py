"""The budgets: how many lines of code each area of raysync may have.

A line of code is not blank, no comment, and no part of a string that stands alone, such as a
docstring. An area above its budget may only fall: its ceiling follows it down.
"""

import io
import tokenize
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "raysync"
TOP = "files at the top"


@dataclass(frozen=True)
class Area:
    packages: tuple[str, ...]
    budget: int
    ceiling: int = 0
    """The lines that an area above its budget has today."""


AREAS = {
    "kernel": Area(("core", "paradigms", "testing", TOP), budget=3_660),
    "engines": Area(
        ("engine", "programs", "virtual", "cluster", "decoupled", "emulation"),
        budget=9_500,
        ceiling=10_181,
    ),
    "training": Area(("training",), budget=5_200, ceiling=6_140),
    "foundation": Area(("config", "record"), budget=5_800, ceiling=6_760),
    "tools": Area(
        ("results", "predict", "calibration", "tuning", "tracking", "running", "cli", "attach"),
        budget=10_900,
        ceiling=13_052,
    ),
}
TOTAL = 35_500
"""The lines of all budgets."""
SLACK = 25
"""The lines that an area may be below its ceiling before the ceiling must follow."""

LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source):
    """Return the number of lines of code in a program."""
    lines, statement = set(), []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            if any(part.type != tokenize.STRING for part in statement):
                for part in statement:
                    lines.update(range(part.start[0], part.end[0] + 1))
            statement = []
        elif token.type not in LAYOUT:
            statement.append(token)
    text = source.split("\n")
    return sum(bool(text[line - 1].strip()) for line in lines)


@cache
def lines_by_package():
    lines = Counter()
    for path in PACKAGE.rglob("*.py"):
        package, *inside = path.relative_to(PACKAGE).parts
        lines[package if inside else TOP] += code_lines(path.read_text(encoding="utf-8"))
    return lines


def problem_of(name, area, lines):
    """Say what is wrong with the size of an area, and what to do; "": nothing."""
    has = f"{name} has {lines:,} lines of code"
    if lines < area.ceiling - SLACK:
        now = f"to {lines:,}" if lines > area.budget else f"to 0: the budget is {area.budget:,}"
        return f"{has}, fewer than its ceiling of {area.ceiling:,}. Lower the ceiling {now}."
    if lines <= max(area.budget, area.ceiling):
        return ""
    if area.ceiling:
        return (
            f"{has}; its budget is {area.budget:,}, and it may only fall from {area.ceiling:,}."
            " Take out as many lines as come in."
        )
    return (
        f"{has}; its budget is {area.budget:,}. Take out as many lines as come in. Or raise this"
        " budget, lower another, and say in the commit what the lines buy."
    )


@pytest.mark.parametrize("name", AREAS)
def test_an_area_keeps_its_budget(name):
    area, lines = AREAS[name], lines_by_package()
    problem = problem_of(name, area, sum(lines[package] for package in area.packages))
    assert not problem, problem


def test_each_package_is_in_one_area():
    areas = Counter(package for area in AREAS.values() for package in area.packages)
    assert set(lines_by_package()) <= set(areas), "a package is in no area: add it to one"
    assert set(areas.values()) == {1}


def test_a_budget_is_raised_where_another_is_lowered():
    assert sum(area.budget for area in AREAS.values()) <= TOTAL


@pytest.mark.parametrize(
    ("lines", "ceiling", "says"),
    [
        (100, 0, ""),
        (101, 0, "has 101 lines of code; its budget is 100."),
        (200, 200, ""),
        (201, 200, "has 201 lines of code; its budget is 100, and it may only fall from 200."),
        (175, 200, ""),
        (174, 200, "174 lines of code, fewer than its ceiling of 200. Lower the ceiling to 174."),
        (90, 200, "Lower the ceiling to 0: the budget is 100."),
    ],
)
def test_what_is_said_of_an_area(lines, ceiling, says):
    problem = problem_of("tools", Area((), budget=100, ceiling=ceiling), lines)
    assert says in problem
    assert bool(says) == bool(problem)


def test_lines_of_code_are_counted():
    source = '''"""A docstring
of two lines."""

import os  # 1

LIMIT = 3  # 2
"""A string that stands alone."""
PAIR = ("in parentheses", os)  # 3


def f(x):  # 4
    """A docstring."""
    # a comment
    text = """5

    # 6: no comment
    """  # 7
    return g(  # 8
        # a comment
        "a string that does not stand alone: 9",
        x,  # 10
    )  # 11


class A: "a docstring, on the line of a statement: 12"
'''
    assert code_lines(source) == 12
    assert code_lines("") == code_lines('# a comment\n\n"""alone"""\n') == 0
