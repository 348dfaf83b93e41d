"""Calls that are about to be issued, to an actor that needs no name."""

from raysync.cluster.transports.transport import CallRequest


def request(message, inputs=(), leases=()):
    return CallRequest("a", None, message, tuple(inputs), leases, None)
