"""The message of an error has no escape sequences, whatever it quotes."""

import pickle
from unicodedata import category

import pytest
from hypothesis import given, strategies as st

from raysync import config
from raysync.errors import ConfigError, ProtocolViolation, RunFailed, RunLost, visible

ERRORS = st.sampled_from([ConfigError, ProtocolViolation, RunFailed, RunLost])


@given(ERRORS, st.text(st.characters() | st.sampled_from("\x1b\x07\x9b\u202e\x00")))
def test_a_message_can_be_printed(kind, text):
    error = pickle.loads(pickle.dumps(kind(text)))
    for message in (str(error), f"{error}", str(kind(error))):
        assert all(each in "\n\t" or category(each) not in ("Cc", "Cs") for each in message)
        assert "\u202e" not in message
        message.encode()
    assert visible(str(error)) == str(error)


def test_colours_of_ray_are_taken_out():
    assert str(RunFailed("\x1b[36mray::Worker.step()\x1b[39m failed\n\tthere")) == (
        "ray::Worker.step() failed\n\tthere"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "\x1b[31m"},
        {"\x1b]0;x\x07": 1},
        {"model": {"name": "\x1b[2J:f"}},
        {"workers": [{"name": "a\x1b"}]},
        {"update": {"\x9b31m": 1}},
    ],
)
def test_what_a_user_wrote_is_quoted_without_its_sequences(settings):
    with pytest.raises(ConfigError) as refused:
        config.validate(settings)
    assert not {"\x1b", "\x07", "\x9b"} & set(str(refused.value))
