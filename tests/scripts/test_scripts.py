"""Stories in text files, `raysync.testing.scripts`: one at least for every built-in paradigm.

pytest tests/scripts --rewrite-scripts      writes the answers; read the diff like code
"""

from pathlib import Path

import pytest

from raysync import ConfigError, Paradigm
from raysync.core.decisions import Apply
from raysync.paradigms import PARADIGMS
from raysync.testing import check_script, play
from raysync.testing.scripts import decision_text
from tests.builders.messages import naming

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_machine_answers_as_written(script, request):
    check_script(script, rewrite=request.config.getoption("--rewrite-scripts"))


def test_there_is_a_script_for_every_paradigm():
    paradigms = {name for name, paradigm in PARADIGMS.items() if issubclass(paradigm, Paradigm)}
    assert paradigms <= {script.stem.partition("_")[0] for script in SCRIPTS}


def test_an_answer_that_differs_is_noticed_and_can_be_written(tmp_path):
    script = tmp_path / "script.txt"
    script.write_text("paradigm bsp\n0 join a#1\n----\nrelease a#1 clock=0 version=7\n")
    with pytest.raises(
        AssertionError, match=r"(?s)-release a#1 clock=0 version=7.*\+release a#1 clock=0 version=0"
    ):
        check_script(script)
    check_script(script, rewrite=True)
    check_script(script)
    assert "version=0" in script.read_text()


def test_the_weights_of_an_update_are_in_its_line():
    weighed = Apply((("a#1", 0), ("b#1", 0)), version=1, weights=(2.0, 0.5))
    assert decision_text(weighed) == "apply a#1@0 b#1@0 weighted 2 0.5 -> version 1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 join a#1", "script:1:"),
        ("paradigm bsp\n0 push a#1", "script:2: 'a#1'"),
        ("paradigm bsp\n0 jump a#1", "script:2: 'jump'"),
        ("paradigm decoupled", "script:1: decoupled"),
        ("paradigm bps", "'bsp'"),
    ],
)
def test_a_script_that_cannot_be_read_names_its_line(text, says):
    with pytest.raises(ConfigError, match=naming(says)):
        play(text)
