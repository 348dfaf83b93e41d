"""How events, and durations in them, read in sentences."""

import re

import pytest
from hypothesis import given, strategies as st

from raysync.core.events import Left
from raysync.core.journal import Entry, Report
from raysync.record.event_text import report_events, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0.0005, "0.5 ms"),
        (0.9994, "999 ms"),
        (0.99999, "1.00 s"),
        (123, "123 s"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(value, text):
    assert seconds(value) == text


@given(st.floats(1e-4, 1e6))
def test_a_duration_keeps_two_digits_and_no_exponent(value):
    number, unit = seconds(value).split()
    assert re.fullmatch(r"[\d,]+(\.\d+)?", number)
    assert float(number.replace(",", "")) * {"s": 1, "ms": 1e-3}[unit] == pytest.approx(
        value, rel=0.05
    )


def test_of_workers_that_leave_together_one_line_tells():
    died, times = "its actor died", (5.0, 5.01, 5.02, 5.8, 6.5, 6.6)
    lines = [
        Entry(
            Left(at=at, worker=f"w-{number}#1"), (), Report(why="another" if number == 2 else died)
        )
        for number, at in enumerate(times)
    ]
    said = []
    report_events(lines, said.append)
    told = [re.findall(r"w-\d#1", text) for text in said]
    assert told == [["w-0#1", "w-1#1", "w-3#1"], ["w-2#1"], ["w-4#1", "w-5#1"]]
