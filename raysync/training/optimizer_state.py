"""The state of a torch optimizer, to be written and to be taken again bit by bit."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from raysync.training.optimizers import SETTINGS
from raysync.training.state_file import State


def state_of(optimizer: Optimizer) -> State:
    """Return all that an optimizer keeps; its tensors are valid until its next step."""
    state = optimizer.state_dict()
    # JSON knows only strings as keys
    return {**state, "state": {str(key): values for key, values in state["state"].items()}}


def restore(optimizer: Optimizer, saved: State) -> None:
    """Give a fresh optimizer the state of another one of its class, which then belongs to it. Its
    settings of the experiment stay its own, such as a momentum that was changed.
    """
    own = [
        {name: group[name] for name in SETTINGS if name in group}
        for group in optimizer.param_groups
    ]
    states = {int(key) if key.isdigit() else key: values for key, values in saved["state"].items()}
    optimizer.load_state_dict({**saved, "state": states})
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for key, values in states.items():
        if isinstance(key, int):  # as they were: torch has cast them to the parameter's type
            cast = optimizer.state[parameters[key]]
            optimizer.state[parameters[key]] = {
                name: value.to(cast[name].device) if isinstance(value, Tensor) else value
                for name, value in values.items()
            }
