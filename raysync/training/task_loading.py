"""Make the task of the user's own that an experiment names."""

from __future__ import annotations

from raysync.config import Named
from raysync.config.experiment import BUILT_IN_TASKS, GIVEN
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.class_loading import call
from raysync.training.adapters.registry import task_adapter
from raysync.training.task import Task
from raysync.training.torchvision_import import load_beside_torchvision


def load_task(choice: Named) -> Task:
    """Import a task, and make it with its parameters.

    Raises:
        ConfigError: it does not exist, its parameters do not fit, or it is no task.
        NotTrusted: it is named by a record that is not trusted.
    """
    where = f"task {choice.name}"
    if choice.name.startswith(GIVEN):
        raise ConfigError(
            f"{where}: it was an object in a Python program, from which alone it can be run again:"
            " raysync.run(..., task=...)."
        )
    if ":" not in choice.name:
        allowed = [*BUILT_IN_TASKS, "package.module:Class"]
        raise unknown_name("task", choice.name, allowed, where="task")
    make = task_adapter(choice.name) or load_beside_torchvision(choice.name, where)
    made = call(make, where, choice.parameters, {})
    if not isinstance(made, Task):
        raise ConfigError(
            f"{where}: must be a class that derives from raysync.Task, or a function that returns"
            f" such an object; got {type(made).__name__}."
        )
    return made
