"""What actors do with messages: their programs, bare and in the shell of each engine."""

from functools import cache

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from raysync import config
from raysync.cluster.actor_errors import ActorError
from raysync.cluster.transports.payloads import incoming, outgoing
from raysync.decoupled.pipelined_topology import server_of
from raysync.engine.messages import (
    MESSAGES,
    ApplyCall,
    BackwardCall,
    CombineCall,
    EvaluateCall,
    ForgetCall,
    ForwardCall,
    LoadServerStateCall,
    LoadWorkerStateCall,
    PublishCall,
    RestoreCall,
    SavedCall,
    SnapshotCall,
    StateDictCall,
    StatisticsCall,
    StepCall,
    StepReport,
    WorkerStateCall,
)
from raysync.engine.topology import SERVER
from raysync.programs.building import (
    gradient_of,
    server_program,
    spec_of,
    stage_program,
    worker_program,
)
from raysync.programs.evaluator import EvaluatorProgram
from raysync.training.preparation import prepare
from raysync.training.server.apply_plan import MEAN
from raysync.training.vectors.wire import Wire
from raysync.virtual.actors import VirtualActor
from raysync.virtual.shared_computation import SharedComputation
from tests.builders.actors import BareShell
from tests.builders.updates import update_plan

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH, STAGES = 8, 3


def model():
    layers = [nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 16), nn.Linear(16, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


# ---- stories: messages with their inputs, given the values that the one before has left ----


def of_a_worker(vector):
    yield StepCall(0, BATCH), [vector]
    [state] = yield WorkerStateCall(1), []
    yield LoadWorkerStateCall(state), []
    yield RestoreCall(), [vector]
    yield StepCall(1, BATCH), []


def of_a_stage(stage, vector):
    back = [torch.ones(BATCH, 16)]
    arrived = back if stage > 1 else []
    if stage < STAGES:
        yield ForwardCall(1), [vector, *arrived]
        yield BackwardCall(1), back
        yield ForwardCall(2), arrived
    yield BackwardCall(2), [vector, *back]


def of_a_server(*push):
    plan = update_plan([BATCH])
    [norm] = yield CombineCall(plan), [*push]
    yield ApplyCall(replace(plan, combined=True)), [norm]
    yield ApplyCall(update_plan([BATCH], version=2), publishes=True), [*push]
    yield PublishCall(2, MEAN), []
    yield StatisticsCall("w-0#1"), []
    [state] = yield SnapshotCall(["kept"], 2), [push[0]]
    yield ForgetCall("w-0#1"), []
    yield LoadServerStateCall(), [state]
    yield SavedCall("kept"), []
    yield PublishCall(2, MEAN), []


def of_an_evaluator(*vectors):
    yield EvaluateCall(is_last=False), [*vectors]
    yield StateDictCall(), [*vectors]


def planned(**settings):
    data = {"name": "digits", "train_samples": 64, "test_samples": 20}
    workers = [{"count": STAGES}]
    given = {"data": data, "batch_size": BATCH, "workers": workers, "paradigm": "asp"}
    return prepare(config.validate(given | settings), model)


def spec_for(training):
    return spec_of(training, training.make(training.experiment.paradigm))


@cache
def spec_with(block, setting, value):
    return spec_for(planned(**{block: {setting: value}}))


class World:
    """The programs of runs with the whole model and of such in stages, and their stories."""

    def __init__(self):
        training = planned()
        self.model, self.parameters = training.model, training.parameters
        self.whole = spec_for(training)
        stages = {"name": "decoupled", "modules": STAGES, "groups": 1}
        self.cut = spec_for(planned(paradigm=stages))

    def vector(self, server=SERVER):
        spec = self.whole if server == SERVER else self.cut
        generator = torch.Generator().manual_seed(0)
        return torch.rand(spec.vector_bytes[server] // 4, generator=generator)

    def worker(self):
        spec, slot = self.whole, self.whole.slots[0]
        gradient = gradient_of(spec, spec.group(slot), self.model, ["cpu"])
        program = worker_program(spec, slot, self.model, gradient, can_lose_servers=True)
        return program, of_a_worker(self.vector())

    def sharing_worker(self):
        shared = SharedComputation(self.whole, self.model)
        return shared.worker(self.whole.slots[0]), of_a_worker(self.vector())

    def stage(self, number):
        program = stage_program(self.cut, self.cut.slots[number - 1], self.model)
        return program, of_a_stage(number, self.vector(server_of(number)))

    def server(self):
        return server_program(self.whole, 0, self.model), of_a_server(self.vector())

    def server_of_a_stage(self):
        story = of_a_server(self.vector(server_of(2)))
        return server_program(self.cut, 1, self.model), story

    def server_of_encoded(self, wire):
        sizes = self.parameters, len(self.vector()) - self.parameters
        push = Wire(wire, *sizes).encode(self.vector())
        spec = spec_with("cluster", "wire", wire)
        return server_program(spec, 0, self.model), of_a_server(push)

    def compensating_server(self):
        spec = spec_with("update", "delay_compensation", "constant")
        return server_program(spec, 0, self.model), of_a_server(self.vector(), self.vector())

    def evaluator(self):
        return EvaluatorProgram(self.whole, self.model, "cpu"), of_an_evaluator(self.vector())

    def evaluator_of_stages(self):
        vectors = map(self.vector, self.cut.vector_bytes)
        return EvaluatorProgram(self.cut, self.model, "cpu"), of_an_evaluator(*vectors)


PROGRAMS = {
    "worker": ("worker", World.worker),
    "sharing worker": ("worker", World.sharing_worker),
    "first stage": ("stage", lambda world: world.stage(1)),
    "stage": ("stage", lambda world: world.stage(2)),
    "last stage": ("stage", lambda world: world.stage(STAGES)),
    "server": ("server", World.server),
    "server of a stage": ("server", World.server_of_a_stage),
    "server of bf16": ("server", lambda world: world.server_of_encoded("bf16")),
    "server of int8": ("server", lambda world: world.server_of_encoded("int8")),
    "server of top-k": ("server", lambda world: world.server_of_encoded("top-k")),
    "compensating server": ("server", World.compensating_server),
    "evaluator": ("evaluator", World.evaluator),
    "evaluator of stages": ("evaluator", World.evaluator_of_stages),
}


@pytest.fixture(scope="module")
def world():
    return World()


def tell(story, execute):
    """Tell all messages; yields each with its inputs and what it has left."""
    values = None
    while True:
        try:
            message, inputs = story.send(values)
        except StopIteration:
            return
        values, answer = execute(message, inputs)
        yield message, inputs, values, answer


def bare(program):
    def execute(message, inputs):
        handled = program.handle(message, inputs)
        return handled.kept, handled.answer

    return execute


def on_ray(program):
    shell = BareShell(program)

    def execute(message, inputs):
        parts, answer = shell.execute(message, [outgoing(each)[0] for each in inputs])
        if message.row.is_file:
            return [part.tobytes() for part in parts], answer
        values = incoming(*parts)
        return [each.clone() if isinstance(each, Tensor) else each for each in values], answer

    return execute


def in_virtual_time(program):
    actor = VirtualActor("here", None, program)

    def execute(message, inputs):
        return actor.compute(message, inputs, StepReport(None, 0.0))

    return execute


def same(one, other):
    """Whether values are the same bit for bit."""
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_message_leaves_the_values_that_it_says_and_the_same_on_each_engine(world, name):
    """They stay as they are when the program goes on."""
    runs = []
    for shell in (bare, on_ray, in_virtual_time):
        program, story = PROGRAMS[name][1](world)
        runs.append(list(tell(story, shell(program))))
    for (message, _, values, answer), *others in zip(*runs, strict=True):
        assert len(values) == message.value_count
        assert not message.row.is_file or isinstance(values[0], bytes | memoryview)
        for _, _, other_values, other_answer in others:
            assert list(map(same, values, other_values)) == [True] * len(values)
            assert message.row.is_file or answer == other_answer


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_message_of_another_kind_is_refused_by_name(world, name):
    kind, make = PROGRAMS[name]
    program, _ = make(world)
    others = [message for message in MESSAGES if message.row.to != kind]
    for other in others:
        with pytest.raises(AssertionError, match=other.__name__):
            program.handle(other(*[None] * len(other.__struct_fields__)), [])


def wrongs(message, inputs):
    """Inputs of another number or size than a message takes."""
    if not (isinstance(message, ApplyCall) and message.plan.combined):  # of any number of shards
        yield inputs + (inputs[-1:] or [torch.ones(3)])
    if len(inputs) > 1 or (inputs and not isinstance(message, StepCall | ForwardCall)):
        yield inputs[:-1]
    for index, value in enumerate(inputs):
        if isinstance(value, Tensor) and not isinstance(message, SnapshotCall):  # of any size
            for other in (value[:-1], torch.cat([value, value[-1:]])):
                yield [*inputs[:index], other, *inputs[index + 1 :]]


@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_of_a_wrong_number_or_size_are_an_error(world, name):
    """They are never ignored."""
    _, make = PROGRAMS[name]
    program, story = make(world)
    accepted = []
    for index, (message, inputs, *_) in enumerate(tell(story, bare(program))):
        for wrong in wrongs(message, inputs):
            fresh, again = make(world)
            so_far = tell(again, bare(fresh))
            for _ in range(index):
                next(so_far)
            try:
                on_ray(fresh)(message, wrong)
            except ActorError:
                continue
            accepted.append((message, [getattr(each, "shape", each) for each in wrong]))
    assert accepted == []
