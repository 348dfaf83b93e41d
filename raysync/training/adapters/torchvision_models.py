"""`model: torchvision:NAME`: the classifiers of torchvision."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from raysync.errors import ConfigError, unknown_name

# models that return several outputs in training unless `aux_logits` is false
AUXILIARY = ("googlenet", "inception_v3")


def build(name: str, /, classes: int, **parameters: Any) -> nn.Module:
    """Build a classifier of torchvision, without pretrained weights unless `weights` asks for them.

    Args:
        parameters: further arguments of the model's function.
    """
    models = import_module("torchvision.models")
    where = f"model torchvision:{name}"
    known = models.list_models(module=models)
    if name not in known:
        allowed = ["the names in torchvision.models.list_models(module=torchvision.models)"]
        raise unknown_name("model of torchvision", name, known, "model", allowed)
    weights = models.get_model_weights(name).__members__
    if isinstance(wanted := parameters.get("weights"), str) and wanted not in weights:
        raise unknown_name("weights", wanted, weights, where)
    if name in AUXILIARY:
        if parameters.setdefault("aux_logits", False):
            raise ConfigError(f"{where}: aux_logits: must be false: a task has one output.")
        parameters.setdefault("init_weights", True)
    try:
        model: nn.Module = models.get_model(
            name, **{"weights": None, "num_classes": classes} | parameters
        )
    except OSError as error:
        raise ConfigError(f"{where}: its weights cannot be loaded ({error}).") from error
    return model
