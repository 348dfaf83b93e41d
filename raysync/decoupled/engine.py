"""A decoupled run on whichever engine the experiment names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raysync.core.journal import Line
from raysync.core.paradigm import Rule
from raysync.decoupled.plan import plan_of
from raysync.decoupled.virtual import run_virtually
from raysync.paradigms.decoupled import Decoupled
from raysync.record.metrics import Title
from raysync.training.task import Task


def run(engine: Any, task: Task, rule: Rule, title: Title | None = None) -> Iterator[list[Line]]:
    """Train a task, and yield what happens, in order; the last line is an `Ended`.

    Args:
        engine: of the session, whose connection to Ray is used.
        task: what to train.
        rule: a `Decoupled`.
        title: what metrics are published under, on Ray; None: none are.

    Raises:
        ConfigError: the network cannot be cut like that, or a setting of the experiment does not go with it.
    """
    assert isinstance(rule, Decoupled), f"{rule.name} is another kind of run"
    plan = plan_of(task, rule)
    if task.experiment.engine == "virtual":
        return run_virtually(plan)
    from raysync.decoupled.session import run_on_ray  # Ray takes its time to import

    return run_on_ray(engine, plan, title)
