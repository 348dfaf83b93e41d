"""`model: timm:NAME`: the image classifiers of timm."""

from __future__ import annotations

from typing import Any

from torch import nn

from raysync.errors import ConfigError, unknown_name
from raysync.training.adapters.packages import require
from raysync.training.models.builtin import Shape


def build(name: str, /, input_shape: Shape, classes: int, **parameters: Any) -> nn.Module:
    """Build a classifier of timm, without pretrained weights unless `pretrained` asks for them.

    Args:
        parameters: further arguments of `timm.create_model`.
    """
    where = f"model timm:{name}"
    timm = require("timm", "timm", where)
    known = timm.list_models()
    if name.partition(".")[0] not in known:  # behind the point: the tag of pretrained weights
        raise unknown_name(
            "model of timm", name, known, "model", ["the names in timm.list_models()"]
        )
    offered = {"pretrained": False, "num_classes": classes, "in_chans": input_shape[0]}
    try:
        model: nn.Module = timm.create_model(name, **offered | parameters)
    except OSError as error:
        raise ConfigError(f"{where}: its weights cannot be loaded ({error}).") from error
    return model
