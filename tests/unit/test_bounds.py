"""Numbers without bounds, and texts with control characters, are refused in a line, wherever they
stand.
"""

import re
from types import UnionType
from typing import Union, get_args, get_origin

import pytest
from hypothesis import given, settings as examples, strategies as st
from pydantic import ValidationError

from raysync import config
from raysync.config import Experiment
from raysync.config.base import SEED_SETTINGS, Strict
from raysync.errors import ConfigError


def models_in(annotation, found):
    """Collect the blocks of settings in a type, and in theirs."""
    if isinstance(annotation, type) and issubclass(annotation, Strict) and annotation not in found:
        found.add(annotation)
        for field in annotation.model_fields.values():
            models_in(field.annotation, found)
    for argument in get_args(annotation):
        models_in(argument, found)
    return found


def kinds_of(annotation):
    """Return the kinds of number that a setting can be."""
    if get_origin(annotation) in (Union, UnionType):
        return {kind for each in get_args(annotation) for kind in kinds_of(each)}
    if get_args(annotation) and get_origin(annotation) is not tuple:
        return kinds_of(get_args(annotation)[0])  # Annotated
    return {each for each in (int, float) if each is annotation}


REQUIRED = {"SwitchSearch": {"target": "final_accuracy"}}
"""Settings without which a block is refused before its numbers are looked at."""
NUMBERS = [
    pytest.param(model, name, kinds_of(field.annotation), id=f"{model.__name__}.{name}")
    for model in sorted(models_in(Experiment, set()), key=str)
    for name, field in model.model_fields.items()
    if kinds_of(field.annotation)
]


@pytest.mark.parametrize(("model", "name", "kinds"), NUMBERS)
def test_each_number_has_bounds(model, name, kinds):
    unbounded = [1e300, -1e300, 10**400, float("inf"), float("nan")]
    beyond = 1e31 if float in kinds else 2**62
    for value in [*unbounded, *([] if name in SEED_SETTINGS else [beyond])]:
        with pytest.raises(ValidationError) as refused:
            model.model_validate(REQUIRED.get(model.__name__, {}) | {name: value})
        errors = refused.value.errors()
        assert any(each["loc"][:1] == (name,) or name in each["msg"] for each in errors), value


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"faults": [{"kind": "kill", "times": 10**9, "end_s": 5}]}, "faults[0].times"),
        ({"workers": [{"count": 10**9}]}, "workers[0].count"),
        ({"workers": [{"resources": {"x": 1e300}}]}, "workers[0].resources.x"),
        ({"workers": [{"trace": [1.0, 1e300]}]}, "workers[0].trace"),
        ({"workers": [{"jitter": {"distribution": "empirical", "samples": [1e300]}}]}, "workers"),
        ({"sweep": {"sample": {"seed": {"randint": [0, 9]}}, "samples": 10**9}}, "sweep.samples"),
        ({"model": {"name": "mlp", "hidden": [10**400]}}, "model.hidden[0]"),
        ({"paradigm": {"name": "ssp", "staleness": 10**400}}, "paradigm.staleness"),
        ({"cluster": {"server_shards": 10**9}}, "cluster.server_shards"),
        ({"batch_size": 10**9}, "batch_size"),
    ],
)
def test_what_has_no_bounds_is_refused_by_its_path(settings, path):
    with pytest.raises(ConfigError, match=re.escape(f"experiment: {path}")) as refused:
        config.validate(settings)
    assert len(str(refused.value).splitlines()) <= 2


TEXTS = [
    lambda text: {"output": text},
    lambda text: {"workers": [{"label_selector": {text: "a"}}]},
    lambda text: {"network": {"nodes": [{"name": text, "workers": ["worker"]}]}},
    lambda text: {"model": {"name": "mlp", "mine": {"deep": [text]}}},
    lambda text: {text: 1},
]


@examples(max_examples=40)
@given(
    st.sampled_from(TEXTS),
    st.text("ab/", max_size=3),
    st.characters(categories=["Cc"], exclude_characters="\t\n"),
)
def test_no_text_has_control_characters(settings, around, control):
    with pytest.raises(ConfigError) as refused:
        config.validate(settings(f"{around}{control}x"))
    assert len(str(refused.value).splitlines()) <= 2


@pytest.mark.parametrize("escaped", [r"\0", r"\e", r"\x9b"])
def test_a_file_cannot_smuggle_them_in(escaped):
    for text in (f'name: "a{escaped}b"', f'output: "a{escaped}b"', f'"{escaped}": 1'):
        with pytest.raises(ConfigError, match="^x.yaml: "):
            config.parse(text, source="x.yaml")
    with pytest.raises(ConfigError, match="^x.yaml: model.x: "):
        config.parse("model: mlp", [f'model.x="{escaped}"'], source="x.yaml")
