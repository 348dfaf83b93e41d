"""The message of an error has no escape sequences, whatever it quotes."""

import pickle
from unicodedata import category

from hypothesis import given, strategies as st

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
