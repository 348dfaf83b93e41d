"""The shell of an actor on Ray, without Ray."""

import pickle

import pytest
import torch

from raysync.cluster.actor_errors import ActorError, ProcessRestarted
from raysync.cluster.transports.payloads import incoming
from raysync.engine.messages import ForgetCall, PublishCall, StatisticsCall, encode
from raysync.programs.program import Handled
from tests.builders.actors import BareShell


class Program:
    """It answers a vector with a longer one, and breaks at a message."""

    class Unpicklable(ValueError):
        pass

    def handle(self, message, inputs, into=None):
        match message:
            case StatisticsCall():
                return Handled((torch.cat([*inputs, *inputs]),), message.worker)
            case ForgetCall():
                return Handled()
        raise self.Unpicklable("my layer breaks")


def test_an_error_of_its_own_travels_as_text():
    """Also one that cannot be pickled."""
    with pytest.raises(ActorError) as raised:
        BareShell(Program()).execute(PublishCall(0, 0), ())
    arrived = pickle.loads(pickle.dumps(raised.value))
    assert arrived.reason.startswith("Unpicklable: my layer breaks (")
    assert arrived.actor_id == "", "this is no actor of Ray's"


def test_a_call_of_rays_is_an_encoded_message_and_returns_values_and_answer_or_that_alone():
    shell, vector = BareShell(Program()), torch.arange(3.0)
    value, answer = shell.call(encode(StatisticsCall("w#1")), vector.numpy())
    assert (incoming(value)[0].tolist(), answer) == ([0, 1, 2, 0, 1, 2], "w#1")
    assert shell.call(encode(ForgetCall("w#1"))) is None


def test_a_process_that_knows_no_run_says_that_it_was_restarted():
    """Also one that could not begin its run."""
    shell = BareShell(Program())
    del shell.prepared
    with pytest.raises(AttributeError):
        shell.reset(None, None)
    with pytest.raises(ProcessRestarted):
        shell.execute(ForgetCall("w#1"), ())
