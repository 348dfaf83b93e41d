"""JSON of typed values: NaN and infinity stay what they are."""

import math

import numpy as np
import pytest

from raysync.core.structs import TaggedStruct, decode, encode, to_native


class Measured(TaggedStruct, frozen=True):
    value: float
    name: str = ""


@pytest.mark.parametrize("value", [0.5, math.inf, -math.inf, math.nan])
def test_a_number_comes_back_as_it_was(value):
    back = decode(encode(Measured(value)), Measured)
    assert back == Measured(value) or (math.isnan(value) and math.isnan(back.value))


def test_half_of_a_surrogate_pair_comes_back_too():
    assert decode(encode(Measured(1.0, "\ud800")), Measured) == Measured(1.0, "\ud800")


@pytest.mark.parametrize("value", [np.float64(0.25), np.str_("a")])
def test_subclasses_of_numbers_and_texts_are_these(value):
    assert to_native({"a": value}) == {"a": value}
    assert type(to_native({"a": value})["a"]) in (float, str)


def test_what_is_no_json_is_refused():
    with pytest.raises(TypeError):
        encode({"a": object()})
    with pytest.raises(ValueError, match="value"):
        decode(b'{"type": "Measured", "value": "high"}', Measured)
