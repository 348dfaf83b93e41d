"""Test your own paradigm with the tests that every built-in paradigm passes.

    from raysync.testing import check_paradigm
    from every_other import EveryOther

    def test_every_other():
        check_paradigm(EveryOther)

`check_paradigm` searches for a history that breaks the contract; it needs Hypothesis, from the
extra `raysync[testing]`. `check_script` compares the machine's answers with a transcript. A `Drive`
feeds a machine from Python.
"""

from raysync.testing.conformance import check_paradigm
from raysync.testing.drive import Drive
from raysync.testing.scripts import check_script, play

__all__ = ["Drive", "check_paradigm", "check_script", "play"]
