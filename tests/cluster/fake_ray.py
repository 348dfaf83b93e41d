"""Ray as the controller sees it, with a clock that only waiting moves: actors answer at their time, or die."""

from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any

from ray.exceptions import ActorDiedError

from raysync.emulation import step_duration_s


@dataclass(eq=False)
class Reference:
    """What an actor call returns."""

    at: float = 0.0
    """When it is there."""
    value: Any = None


class FakeRay:
    """Takes the place of the module, and of the clock."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        for module in ("controller", "pending", "evaluations", "running"):
            monkeypatch.setattr(f"raysync.cluster.{module}.ray", self, raising=False)
            monkeypatch.setattr(f"raysync.cluster.{module}.now_s", lambda: self.now, raising=False)
        monkeypatch.setattr("raysync.cluster.controller.sleep_s", lambda seconds: self.wait([], 1, seconds))

    def wait(self, references, num_returns=1, timeout=inf):
        first = min(references, key=lambda reference: reference.at, default=None)
        if first is None or first.at > self.now + timeout:
            assert timeout < inf, "waits for ever"
            self.now += timeout
            return [], references
        self.now = max(self.now, first.at)
        return [first], [reference for reference in references if reference is not first]

    def get(self, references, timeout=None):
        for reference in references if isinstance(references, list) else [references]:
            if isinstance(reference.value, Exception):
                raise reference.value
        return None if isinstance(references, list) else references.value

    def kill(self, actor):
        actor.die()


def method(call):
    """An actor's: `worker.step`, with `.remote` and `.options`."""
    made = SimpleNamespace(remote=call)
    made.options = lambda **_: made
    return made


@dataclass(eq=False)
class FakeWorker:
    """Computes as long as the emulation says."""

    ray: FakeRay
    actor_id: str
    slot: str
    experiment: Any
    alive: bool = True
    batches: list[Any] = field(default_factory=list)
    """What came with the calls of `step`."""
    steps: list[Any] = field(default_factory=list)
    """Of the same calls: the weights, and the gradient that they led to."""
    read: list[tuple[int, int]] = field(default_factory=list)
    """(clock, version of the weights) of those that came with weights."""
    _last: Reference = field(default_factory=Reference)

    @property
    def step(self):
        return method(self._step)

    def _step(self, batch, *weights):
        assert self.alive, "a step for a dead worker"
        self.batches.append(list(batch))
        clock, size, *befallen = batch
        self.read += [(clock, part.value) for part in weights]
        factor, _ = befallen or (1.0, 0.0)
        busy_s = step_duration_s(self.experiment.slots()[self.slot], 0.0, self.experiment.seed, self.slot, clock, factor,
                                 size / self.experiment.batch_size)
        self._last = Reference(self.ray.now + busy_s, [0.5, busy_s])
        self.steps.append((weights, Reference()))
        return [self.steps[-1][1], self._last]

    def die(self):
        self.alive = False
        if self._last.at > self.ray.now:
            self._last.at, self._last.value = self.ray.now, ActorDiedError()
            self._last.value.actor_id = self.actor_id


class FakeServer:
    """Answers at once; its weights are their version."""

    def __init__(self) -> None:
        self.version = 0
        self.updates: list[Any] = []
        """Fields of the plan, and vectors."""
        self.publish = method(lambda: (Reference(0.0, self.version), Reference(0.0, self.version)))
        self.apply = method(self._apply)
        self.apply_and_publish = method(self._apply)
        self.forget = method(lambda worker: None)

    def _apply(self, fields, *vectors):
        self.updates.append((fields, vectors))
        self.version += 1
        return Reference(0.0, self.version)


class FakeEvaluator:
    """Finds half of it right."""

    def __init__(self, ray: FakeRay, evaluation_s: float) -> None:
        self.evaluated = []
        """Version of the weights of each evaluation."""
        self.ray, self.evaluation_s = ray, evaluation_s
        self.evaluate = method(self._evaluate)

    def _evaluate(self, on_all, *weights):
        self.evaluated += [part.value for part in weights]
        return Reference(self.ray.now + self.evaluation_s, (0.5, 0.7))


@dataclass
class FakePost:
    """Its worker is ready after a while, or breaks."""

    ray: FakeRay
    slot: str
    experiment: Any
    ready_after_s: float = 0.0
    error: Exception | None = None
    filled: list[FakeWorker] = field(default_factory=list)

    def fill(self):
        number = len(self.filled) + 2
        worker = FakeWorker(self.ray, f"{self.slot} {number}", self.slot, self.experiment)
        self.filled.append(worker)
        place = SimpleNamespace(actor_id=worker.actor_id)
        return worker, Reference(self.ray.now + self.ready_after_s, self.error or place)
