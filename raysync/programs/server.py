"""The program of a parameter server, or of a shard or stage of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from raysync.engine.messages import (
    ApplyCall,
    CombineCall,
    ForgetCall,
    LoadServerStateCall,
    Message,
    PublishCall,
    SavedCall,
    SnapshotCall,
    StatisticsCall,
)
from raysync.programs.program import Handled, not_mine
from raysync.training.formats.state_file import State
from raysync.training.server.model_server import ModelServer, Store


class ServerProgram:
    """Updates in the order of their versions, and the weights between them."""

    def __init__(self, store: Store) -> None:
        self._model = ModelServer(store)
        self.size = len(store.publish(0))  # of its vectors, in numbers

    def handle(
        self, message: Message, inputs: Sequence[Any], into: Tensor | None = None
    ) -> Handled:
        model = self._model
        takes = ApplyCall | CombineCall | SnapshotCall | LoadServerStateCall
        assert isinstance(message, takes) or not inputs, f"inputs of {message}"
        match message:
            case ApplyCall(plan=plan, publishes=publishes):
                assert plan is not None, "an update without its details"
                version = model.apply(plan, inputs)
                values = (model.publish(version, 0),) if publishes else ()
                return Handled(values, version, is_borrowed=publishes)
            case PublishCall(version=version, replica=replica):
                return Handled((model.publish(version, replica),), version, is_borrowed=True)
            case CombineCall(plan=plan):
                return Handled((model.combine(plan, inputs),))
            case ForgetCall(worker=worker):
                model.forget(worker)
            case StatisticsCall(worker=worker):
                return Handled((model.statistics(worker),))
            case SavedCall(name=name):
                return Handled((model.saved(name),))
            case SnapshotCall(names=names, version=version):
                file = model.snapshot(names, inputs, version)
                return Handled((file,), version, is_borrowed=True)
            case LoadServerStateCall():
                [data] = inputs
                model.restore(data)
            case _:
                raise not_mine("server", message)
        return Handled()

    def state(self) -> State:
        return self._model.state()

    def load_state(self, state: State) -> None:
        self._model.load_state(state)
