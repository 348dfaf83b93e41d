"""Ray with actors of this process, and a Direct Transport that reads as late as it may.

Each actor works its calls off in their order; what goes on when is chosen by `choose` alone. What
an actor returns by the transport stays in its memory, and is read from there in two halves, each at
any moment between when it was returned and when the call that needs it begins: if the memory
changes meanwhile, `torn` has it.
"""

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from ray.exceptions import ActorDiedError, GetTimeoutError, RayDirectTransportError, RayTaskError

from raysync.cluster import backend as backend_module, server, transport, worker
from raysync.cluster.registered_memory import RegisteredMemory

TICK_S = 0.001
GIVES_UP_S = 60.0
"""How long Ray waits for a transfer that hangs, as one from a frozen process does."""
PENDING = object()


@dataclass(eq=False)
class Reference:
    value: object = PENDING
    source: "Actor | None" = None
    """Whose memory it is in, if it travels by the transport."""
    returned: object = None
    """A copy of what was there when it was returned."""

    @property
    def has_failed(self):
        return isinstance(self.value, Exception)


@dataclass(eq=False)
class Transfer:
    reference: Reference
    since: float
    halves: list = field(default_factory=list)
    error: Exception | None = None

    @property
    def is_done(self):
        return len(self.halves) == 2 or self.error is not None


@dataclass(eq=False)
class Task:
    method: str
    arguments: tuple
    options: dict
    returns: list
    is_direct: bool
    transfers: dict


@dataclass(eq=False)
class Actor:
    name: str
    itself: object
    memory: RegisteredMemory
    queue: deque = field(default_factory=deque)
    is_alive: bool = True
    is_frozen: bool = False


class DirectWorld:
    """Takes the place of Ray's module, of the clock and of the transport."""

    def __init__(self, monkeypatch, choose):
        self.choose, self.now = choose, 0.0
        self.actors, self.torn, self.calls = {}, [], []
        self.kept_most = 0
        """The most vectors that an actor has kept at once."""
        self.ticks, self.dies_at = 0, {}
        """The number of things that happened, and after how many which actor dies."""
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(backend_module, "ray", self)
        monkeypatch.setattr(backend_module, "now_s", lambda: self.now)
        monkeypatch.setattr(backend_module, "sleep_s", self._sleep)

    def actor(self, name, itself):
        """An actor whose methods can be called."""

        memory = RegisteredMemory(lambda vector: None, lambda vector: None)
        self.actors[name] = actor = Actor(name, itself, memory)
        return _Handle(self, actor)

    def inside(self, actor, call):
        """Call something as it would be called in that actor's process."""
        for module in (transport, worker, server):
            self._monkeypatch.setattr(module, "MEMORY", actor.memory)
        return call()

    def freeze(self, name):
        self.actors[name].is_frozen = True

    def kill(self, handle, no_restart=True):
        actor = handle._actor
        actor.is_alive = False
        for task in actor.queue:
            self._fail(task, died(actor))
        actor.queue.clear()

    def issue(self, actor, task):
        self.calls.append((actor.name, task.method))
        if actor.is_alive:
            actor.queue.append(task)
        else:
            self._fail(task, died(actor))

    # ---- what the backend asks of Ray ----

    def wait(self, references, num_returns=1, timeout=None, fetch_local=True):
        until = self.now + timeout if timeout is not None else float("inf")
        while True:
            ready = [each for each in references if each.value is not PENDING][:num_returns]
            if len(ready) == num_returns or self.now >= until:
                return ready, [each for each in references if each not in ready]
            if not self.go_on():
                assert until < float("inf"), "Ray would wait for ever"
                self.now = until

    def get(self, references, timeout=None):
        ready, _ = self.wait(references, len(references), timeout)
        if len(ready) < len(references):
            raise GetTimeoutError
        for each in references:
            assert each.source is None, "the driver would fetch a tensor"
            if each.has_failed:
                raise each.value
        return [each.value for each in references]

    def _sleep(self, seconds):
        until = self.now + seconds
        while self.now < until and self.go_on():
            pass
        self.now = max(self.now, until)

    # ---- what happens ----

    def go_on(self):
        """Let one thing happen; False if nothing can."""
        self.ticks += 1
        if self.ticks in self.dies_at:
            self.kill(SimpleNamespace(_actor=self.actors[self.dies_at[self.ticks]]))
        possible = [event for actor in self.actors.values() for event in self._possible(actor)]
        if not possible:
            return False
        self.now += TICK_S
        happens, argument, of = self.choose(possible)
        happens(argument, of)
        return True

    def _possible(self, actor):
        if not actor.is_alive or actor.is_frozen:
            return
        for task in actor.queue:  # as Ray's own thread does, whatever is in front of it
            for transfer in task.transfers.values():
                if transfer.reference.value is PENDING or transfer.is_done:
                    continue
                if not transfer.reference.source.is_frozen:
                    yield self._read, transfer, actor
                elif self.now >= transfer.since + GIVES_UP_S:
                    yield self._give_up, transfer, actor
        for task in list(actor.queue)[:1]:
            arguments = [each for each in task.arguments if isinstance(each, Reference)]
            if all(each.value is not PENDING for each in arguments) and all(
                transfer.is_done for transfer in task.transfers.values()
            ):
                yield self._carry_out, task, actor

    def _read(self, transfer, actor):
        reference = transfer.reference
        if reference.has_failed:
            transfer.error = reference.value
        elif not reference.source.is_alive:
            transfer.error = RayDirectTransportError("its source is gone")
        else:
            middle = len(reference.value) // 2
            part = slice(middle, None) if transfer.halves else slice(middle)
            transfer.halves.append(reference.value[part].clone())
            if transfer.is_done and not torch.equal(torch.cat(transfer.halves), reference.returned):
                self.torn.append(actor.name)

    def _give_up(self, transfer, actor):
        transfer.error = TimeoutError("not found in RDT object store after 60.0s")

    def _carry_out(self, task, actor):
        actor.queue.popleft()
        errors = [each.value for each in task.arguments if _has_failed(each)]
        errors += [each.error for each in task.transfers.values() if each.error is not None]
        if errors:
            self._fail(task, passed_on(errors[0]))
            return
        arguments = [
            (torch.cat(task.transfers[each].halves) if each in task.transfers else each.value)
            if isinstance(each, Reference)
            else each
            for each in task.arguments
        ]
        method = getattr(actor.itself, task.method)
        try:
            result = self.inside(actor, lambda: method(*arguments, **task.options))
        except Exception as error:
            self._fail(task, passed_on(error))
            return
        values = [result] if len(task.returns) == 1 else list(result)
        for reference, value in zip(task.returns, values, strict=True):
            if task.is_direct:
                reference.source, reference.returned = actor, value.clone()
            reference.value = value.copy() if hasattr(value, "flags") else value  # Ray's own copy
        self.kept_most = max(self.kept_most, len(actor.memory))

    def _fail(self, task, error):
        for reference in task.returns:
            reference.value = error


def _has_failed(argument):
    return isinstance(argument, Reference) and argument.has_failed


def died(actor):
    error = ActorDiedError()
    error.actor_id = actor.name
    return error


def passed_on(cause):
    if isinstance(cause, RayTaskError):
        return cause
    return RayTaskError("call", "", cause, "", 1, "").as_instanceof_cause()


class _Handle:
    def __init__(self, world, actor):
        self._world, self._actor = world, actor

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self._world, self._actor, name)


class _Method:
    def __init__(self, world, actor, name, returns=None, tensor_transport=None):
        self._world, self._actor, self._name = world, actor, name
        method = getattr(type(actor.itself), name)
        self._returns = returns or getattr(method, "__ray_num_returns__", 1)
        self._is_direct = tensor_transport is not None

    def options(self, num_returns=None, tensor_transport=None, **_):
        return _Method(self._world, self._actor, self._name, num_returns, tensor_transport)

    def remote(self, *arguments, **options):
        returns = [Reference() for _ in range(self._returns)]
        if self._is_direct:
            assert len(returns) == 1, "Ray allows one value"
            returns[0].source = self._actor
        transfers = {
            each: Transfer(each, self._world.now)
            for each in arguments
            if isinstance(each, Reference) and each.source is not None
        }
        task = Task(self._name, arguments, options, returns, self._is_direct, transfers)
        self._world.issue(self._actor, task)
        return returns if len(returns) > 1 else returns[0]


def place(name):
    return SimpleNamespace(actor_id=name, node_id="here")
