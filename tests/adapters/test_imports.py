"""A library is imported when an experiment asks for it, and missed by the name of its extra."""

import sys
from subprocess import run

import pytest

from raysync import config
from raysync.errors import ConfigError
from raysync.training.preparation import prepare

LIBRARIES = ("lightning", "peft", "timm", "torchmetrics", "transformers")
WITHOUT = f"""
import sys
import raysync
from raysync import config
from raysync.training.preparation import prepare
prepare(config.validate({{"engine": "virtual"}}))
print(*sorted(set({LIBRARIES!r}) & set(sys.modules)))
"""


def test_a_run_without_adapters_imports_none_of_the_libraries():
    done = run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


HF = {"head": "causal-lm", "data": "tests.builders.token_data:plain"}


@pytest.mark.parametrize(
    ("missing", "extra", "settings"),
    [
        ("lightning", "lightning", {"task": "lightning:tests.builders.lightning_modules:Whole"}),
        ("transformers", "huggingface", {"task": {"name": "hf:gpt2", **HF}}),
        ("peft", "huggingface", {"task": {"name": "hf:gpt2", "lora": {}, **HF}}),
        ("timm", "timm", {"model": "timm:resnet18"}),
    ],
)
def test_a_missing_package_is_named_with_its_extra(missing, extra, settings, monkeypatch):
    if missing == "peft":
        pytest.importorskip("transformers")
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    message = rf"the package {missing} is not installed: pip install 'raysync\[{extra}\]'"
    with pytest.raises(ConfigError, match=message):
        prepare(config.validate({"engine": "virtual", **settings}))
