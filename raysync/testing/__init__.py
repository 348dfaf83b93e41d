"""Tests for a paradigm of your own: the ones that every built-in paradigm passes.

    from raysync.testing import check_paradigm
    from every_other import EveryOther

    def test_every_other():
        check_paradigm(EveryOther)

`check_paradigm` looks for a history that breaks the contract; it needs Hypothesis, which the extra
`raysync[testing]` brings. `check_script` compares the machine's answers with those of a story that
you wrote down. With a `Drive` you write such a story in Python.
"""

from raysync.testing.conformance import check_paradigm
from raysync.testing.drive import Drive
from raysync.testing.scripts import check_script, play

__all__ = ["Drive", "check_paradigm", "check_script", "play"]
