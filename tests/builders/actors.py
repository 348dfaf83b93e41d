"""Actors in this process, without Ray: they are tested by what they answer to messages."""

from types import SimpleNamespace

import torch

from raysync import config
from raysync.cluster.actors import devices
from raysync.cluster.actors.actor_spec import Role
from raysync.cluster.actors.shell import Ready, Shell
from raysync.cluster.actors.threads import Threads
from raysync.programs.building import spec_of
from raysync.training.preparation import prepare


class BareShell(Shell):
    """A shell around any program, in the midst of a run."""

    def __init__(self, program, **ready):
        super().__init__(Threads(torch.get_num_threads()), Role("bare"))
        self.prepared = Ready(program=program, place=None, **ready)
        self.reset(None, None)

    def begin(self, spec, model):
        return self.prepared


def begun(monkeypatch, actor, settings, number=0, state=(), threads=None, **given):
    """An actor that has begun a run, and the training.

    Args:
        actor: its class.
        number: of the worker, stage or server.
        state: the file of a server's snapshot, if it is to go on from that.
        given: model, data or task, in place of the experiment's.
    """
    context = SimpleNamespace(
        get_actor_id=lambda: "", get_node_id=lambda: "", get_accelerator_ids=dict
    )
    address = SimpleNamespace(get_node_ip_address=lambda: "")
    ray = SimpleNamespace(get_runtime_context=lambda: context, util=address)
    monkeypatch.setattr(devices, "ray", ray)
    training = prepare(config.validate(settings), **given)
    spec = spec_of(training, training.make(training.experiment.paradigm))
    role = Role(f"actor-{number}", spec.slots[number])
    begun = actor(threads or Threads(torch.get_num_threads()), role)
    begun.reset(spec, training.model, *state)
    return begun, training
