"""How durations read in sentences about events."""

import re

import pytest
from hypothesis import given, strategies as st

from raysync.record.event_text import seconds


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
