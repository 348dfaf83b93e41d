"""The evaluator actor; training never waits for it."""

from __future__ import annotations

from typing_extensions import override

from raysync.cluster.actors.devices import current_place, devices_of_actor
from raysync.cluster.actors.shell import Ready, Shell
from raysync.cluster.actors.warm_up import warm_up
from raysync.programs.evaluator import EvaluatorProgram
from raysync.programs.run_spec import RunSpec
from raysync.training.models.initial_model import InitialModel


class Evaluator(Shell):
    """Evaluates published weights on the test set, in the order of their publication."""

    @override
    def begin(self, spec: RunSpec, model: InitialModel) -> Ready:
        [device] = devices_of_actor()
        program = EvaluatorProgram(spec, model, device, spec.experiment.data.loader_workers)
        warm_up((model.name, device, "evaluation"), lambda: lambda number: program.warm_up())
        return Ready(program=program, place=current_place([device]))
