"""YAML of version 1.2 with bounds: keys given twice, endless nesting, and aliases of aliases are
refused in a line.
"""

import itertools
import re

import pytest
import yaml
from hypothesis import given, strategies as st

from raysync import config
from raysync.config.yaml_reading import DEEPEST, MOST_ALIASED, read_yaml, write_yaml
from raysync.errors import ConfigError
from tests.builders.messages import naming

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.from_regex(r"\A[-+.0-9eEoxb:_]{1,6}\Z")  # what may look like a number
    | st.sampled_from(["yes", "NO", "on", "True", "null", "~", "<<", "=", "1e-3", "2024-01-01"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


def laughs(levels, width):
    """The "billion laughs": each anchor is a list of the one before, several times."""
    lines = ["a0: &a0 [ha, ha, ha]"]
    lines += [
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]"
        for level in range(1, levels + 1)
    ]
    return "\n".join(lines)


def alike(one, other):
    """Whether two values are equal and of the same types: 1 is neither 1.0 nor true."""
    return repr(one) == repr(other)


@given(values, st.booleans())
def test_what_is_written_is_read_back(value, flow):
    """Also the aliases that it writes for what is there twice, keys that differ by type alone, and
    by readers of YAML 1.1.
    """
    again = {"one": value, "two": [value, value], 2: 1, "2": "1", True: 2, "true": 3}
    text = write_yaml(again, flow=flow)
    assert alike(read_yaml(text, "x.yaml"), again)
    assert alike(yaml.safe_load(text), again)


DIGITS = st.text("0123456789", min_size=1, max_size=6)
SIGNS = st.sampled_from(["", "+", "-"])
EXPONENTS = st.builds("{}{}{}".format, st.sampled_from("eE"), SIGNS, st.integers(0, 30))


@given(
    sign=SIGNS,
    mantissa=st.builds("{}.{}".format, DIGITS, DIGITS)
    | st.builds("{}.".format, DIGITS)
    | st.builds(".{}".format, DIGITS),
    whole=DIGITS,
    exponent=EXPONENTS,
)
def test_a_number_is_a_number_however_it_is_written(sign, mantissa, whole, exponent):
    """In a file, in a list on a line, as a key and by --set; quoted, it is text."""
    written = {
        f"{sign}{mantissa}": float,
        f"{sign}{mantissa}{exponent}": float,
        f"{sign}{whole}{exponent}": float,
        f"{sign}{whole}": int,
    }
    for text, kind in written.items():
        number = kind(text)
        for around in (f"a: {text}", f"{{a: {text}}}", f"a:\n  {text}  # a number"):
            assert alike(read_yaml(around, "x.yaml"), {"a": number})
        assert alike(read_yaml(f"[{text}, '{text}', {text}]", "x.yaml"), [number, text, number])
        assert alike(read_yaml(f"{text}: 1", "x.yaml"), {number: 1})
        parsed = config.parse("model: m", [f"model.x={text}"], source="x.yaml")
        assert alike(parsed.model.parameters["x"], number)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0o17", 15),
        ("0x1F", 31),
        ("017", 17),
        ("1:30", "1:30"),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("yes", "yes"),
        ("Off", "Off"),
        ("TRUE", True),
        ("2024-99-99", "2024-99-99"),
        ("e3", "e3"),
        ("1e", "1e"),
        (".", "."),
        ("-.inf", float("-inf")),
    ],
)
def test_other_scalars_are_those_of_the_core_schema(text, value):
    assert alike(read_yaml(f"[{text}]", "x.yaml"), [value])


@pytest.mark.parametrize("value", ["yes", "no", "on", "off"])
def test_a_setting_that_is_true_or_false_takes_the_words_of_yaml_1_1(value):
    parsed = config.parse("workers: [{count: 1}]", [f"workers.0.compile={value}"], source="x.yaml")
    assert parsed.workers[0].compile is (value in ("yes", "on"))


@pytest.mark.parametrize(
    "text", ["a: 1\n\tb: 2", "a:\n  b: 1\n\tc: 2", "\ta: 1", "a:\n  - 1\n\t- 2", "a: 1\n  \tb: 2"]
)
def test_an_indentation_by_a_tab_is_called_that(text):
    line = 1 + text[: text.index("\t")].count("\n")
    with pytest.raises(ConfigError, match=rf"^x.yaml: .*line {line}\b.*\btab\b"):
        read_yaml(text, "x.yaml")


def test_tabs_elsewhere_are_fine():
    assert read_yaml("a:\t[\n\t1,\n\t2]\t# two\n", "x.yaml") == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (laughs(9, 9), r"line \d: aliases \(\*a\d\) stand for more than 1,000,000 characters"),
        (
            "a: &a {k: 1}\n"
            + "\n".join(
                f"{c}: &{c} {{<<: [{', '.join([f'*{chr(ord(c) - 1)}'] * 9)}]}}" for c in "bcdefghi"
            ),
            "stand for more than",
        ),
        (f"a: &a {'x' * 10_000}\nb: [{', '.join(['*a'] * 101)}]", r"line 2: aliases \(\*a\)"),
        ("a: &a [*a]", r"line 1: the alias \*a is inside the value that it stands for"),
        ("a: &a\n  <<: *a", r"line 2: the alias \*a is inside the value that it stands for"),
        ("[" * 500 + "]" * 500, f"line 1: nested deeper than {DEEPEST} levels"),
        ("{a: " * 2_000 + "}" * 2_000, f"line 1: nested deeper than {DEEPEST} levels"),
        ("- " * 2_000 + "x", f"line 1: nested deeper than {DEEPEST} levels"),
        ("seed: 1\nmodel: mlp\nseed: 2", "line 3: the key 'seed' is given twice, first in line 1"),
        ("update:\n  lr: 1\n  momentum: 0\n  lr: 2", "line 4: the key 'lr' is .* line 2"),
        ("{seed: 1, 'seed': 2}", "the key 'seed' is given twice"),
        ("name: !!timestamp 2024-99-99", "a value in it cannot be read: month must be in 1..12"),
        (f"\nx: {2**63}", "line 2: 92233720"),
        (f"x: -{2**63 + 1}", "line 1: -92233720"),
        (f"x: 1{'0' * 400}", "line 1: 1000"),
        (f"x: 0x{'f' * 5000}", "line 1: 0xff"),
        (f"seed: {'9' * 5000}", "a value in it cannot be read"),
        ("a: !!bool maybe", "a value in it cannot be read"),
        ("a: [", "not YAML at line"),
        ("a: *b", "not YAML at line 1: found undefined alias"),
        ("a: !!python/object/apply:os.system [ls]", "line 1: .*constructor .*os.system"),
    ],
    ids=itertools.count(),
)
def test_what_cannot_be_read_is_a_line(text, says):
    with pytest.raises(ConfigError, match=f"^x.yaml: .*{says}") as refused:
        read_yaml(text, "x.yaml")
    assert "\n" not in str(refused.value)


def test_the_bound_is_on_what_aliases_repeat_and_not_on_what_a_text_says():
    """A record has its step times in it, however many."""
    text = f"[{', '.join(['0.' + '25' * 500] * 1100)}]"
    assert len(text) > MOST_ALIASED
    assert len(read_yaml(text, "x.yaml")) == 1100
    below = f"a: &a {'x' * 1000}\nb: [{', '.join(['*a'] * 900)}]"
    assert read_yaml(below, "x.yaml")["b"][-1] == "x" * 1000
    assert read_yaml("[" * (DEEPEST - 1) + "]" * (DEEPEST - 1), "x.yaml") is not None


def test_anchors_serve_an_experiment():
    text = """
        workers:
          - &fast {name: fast, step_s: 0.02, jitter: &jitter {distribution: lognormal, sigma: 0.1}}
          - {<<: *fast, name: slow, speed: 0.5}
          - {name: far, step_s: 0.1, jitter: *jitter}
    """
    fast, slow, far = config.parse(text, source="x.yaml").workers
    assert slow == fast.model_copy(update={"name": "slow", "speed": 0.5})
    assert far.jitter == fast.jitter


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}", "---\n", "null"])
def test_a_file_that_sets_nothing_is_no_experiment(text):
    with pytest.raises(ConfigError, match=naming("x.yaml:")):
        config.parse(text, ["seed=1"], source="x.yaml")


def test_overrides_and_profiles_are_read_with_the_same_bounds(tmp_path):
    for value in ("{a: 1, a: 2}", "[" * 100 + "]" * 100, "&a [*a]"):
        override = f"data.parameters.x={value}"
        with pytest.raises(ConfigError, match=re.escape(f"--set {override}: line 1: ")):
            config.parse("seed: 1", [override], source="x.yaml")
    (tmp_path / "p.yaml").write_text("about: p\n" + laughs(9, 9))
    with pytest.raises(ConfigError, match=naming("p.yaml: line 8:")):
        config.parse(f"profile: {tmp_path}/p.yaml", source="x.yaml")


def test_an_error_shows_the_beginning_of_a_long_value():
    with pytest.raises(ConfigError, match=naming("x.yaml: update: 1,...")) as refused:
        config.parse(f"update: [{', '.join(['1'] * 1000)}]", source="x.yaml")
    assert len(str(refused.value)) < 500
    with pytest.raises(ConfigError, match=naming("batch_size:")):
        config.validate({"batch_size": -(16**5000)})
