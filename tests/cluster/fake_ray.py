"""Ray as the controller sees it, with a clock that only waiting moves: actors answer at their time, or die."""

from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any

from ray.exceptions import ActorDiedError, ObjectLostError, RayTaskError
from raysync.cluster.messages import ApplyPlan

from raysync.engine.step_time import step_duration_s


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
        for module in ("controller", "pending", "evaluations", "running", "shards"):
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

    def kill(self, actor, no_restart=True):
        assert no_restart == (not isinstance(actor, FakeEvaluator)), "only the evaluator is started anew by Ray"
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
    upload_s: float = 0.0
    """How long its gradients take to come."""
    lost_clock: int | None = None
    """Iteration whose gradient is lost on its way, with the node."""
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
        is_lost = clock == self.lost_clock
        value = ObjectLostError("", None, "") if is_lost else None
        self.steps.append((weights, Reference(self._last.at + self.upload_s, value)))
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
        self.publish = method(self._publish)
        self.apply = method(self._apply)
        self.apply_and_publish = method(self._apply)
        self.forget = method(lambda worker: None)

    def _publish(self, version):
        assert version == self.version, "another version than the controller thinks"
        return Reference(0.0, version), Reference(0.0, version)

    def _apply(self, fields, *vectors):
        assert ApplyPlan(*fields).version == self.version + 1
        assert all(vector.value is None for vector in vectors[: len(fields[1])]), "a gradient that was lost"
        self.updates.append((fields, vectors))
        self.version += 1
        return Reference(0.0, self.version)


class FakeEvaluator:
    """Finds half of it right, unless it dies or freezes."""

    def __init__(self, ray: FakeRay, evaluation_s: float) -> None:
        self.evaluated = []
        """Version of the weights of each evaluation that began."""
        self.ray, self.evaluation_s = ray, evaluation_s
        self.fates: list[Any] = []
        """Of the next evaluations: None, an error in place of the answer, or "frozen"."""
        self.restarts = 0
        self.is_ready, self.is_frozen = True, False
        self.evaluate, self.reset = method(self._evaluate), method(self._reset)

    def _reset(self, *setup):
        self.is_ready = True
        self.restarts += 1
        return Reference(inf if self.is_frozen else self.ray.now + 2.0)

    def _evaluate(self, on_all, *weights):
        assert self.is_ready, "an evaluation by a process that was not reset"
        self.evaluated += [part.value for part in weights]
        fate = self.fates.pop(0) if self.fates else None
        self.is_ready = fate is None or isinstance(fate, RayTaskError)
        self.is_frozen = fate == "frozen"
        return Reference(inf if self.is_frozen else self.ray.now + self.evaluation_s, fate or (0.5, 0.7))

    def die(self):
        self.is_ready = self.is_frozen = False


@dataclass
class FakePost:
    """Its worker is ready after a while, or breaks."""

    ray: FakeRay
    slot: str
    experiment: Any
    ready_after_s: float = 0.0
    error: Exception | None = None
    filled: list[FakeWorker] = field(default_factory=list)

    def fill(self, life):
        assert life == len(self.filled) + 2, "lives are counted"
        worker = FakeWorker(self.ray, f"{self.slot} {life}", self.slot, self.experiment)
        self.filled.append(worker)
        place = SimpleNamespace(actor_id=worker.actor_id)
        return worker, Reference(self.ray.now + self.ready_after_s, self.error or place)
