"""`model: torchvision:NAME`: the classifiers of torchvision."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from raysync.errors import ConfigError, unknown_name

AUXILIARY = ("googlenet", "inception_v3")
"""Models that return several outputs in training unless `aux_logits` is false."""


def build(name: str, /, classes: int, **parameters: Any) -> nn.Module:
    """Build a classifier of torchvision, without pretrained weights unless `weights` asks for them.

    Args:
        name: one of `torchvision.models.list_models(module=torchvision.models)`.
        classes: the number of logits.
        parameters: further arguments of the model's function.

    Raises:
        ConfigError: there is no such model, or its weights cannot be downloaded.
    """
    models = import_module("torchvision.models")
    where = f"model torchvision:{name}"
    known = models.list_models(module=models)
    if name not in known:
        shown = ["the names in torchvision.models.list_models(module=torchvision.models)"]
        raise unknown_name("model of torchvision", name, known, "model", shown)
    weights = models.get_model_weights(name).__members__
    if isinstance(asked := parameters.get("weights"), str) and asked not in weights:
        raise unknown_name("weights", asked, weights, where)
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
