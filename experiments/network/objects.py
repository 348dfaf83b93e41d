"""The driver on host 1 that measures a network through Ray: objects that actors fetch, and calls.

Its standard input is what `links.py` asks for. For every object that has arrived, and every call,
it prints a line: `[flows, repetition, source, target, bytes, seconds]`.
"""

import json
import sys
import time
from statistics import mean
from typing import Any

import numpy as np
import ray

AHEAD_S = 0.2
"""How long before the beginning the actors are told of it."""
CALLS = 20
"""The calls of a repetition, one after another; their mean is its time."""
CALL_BYTES = 4096


class Peer:
    """An actor on a host, which makes objects there and fetches others."""

    def make(self, count: int) -> np.ndarray:
        """Return an object of so many bytes; it stays in the store of this node."""
        return np.zeros(count, np.uint8)

    def fetch(self, begin_s: float, objects: dict[int, list[ray.ObjectRef]]) -> dict[int, float]:
        """Fetch objects at once; return their keys -> the seconds after which each was here.

        Args:
            begin_s: when to begin, of the monotonic clock, which all hosts of a machine share.
            objects: key -> the reference in a list, so that Ray does not fetch it before the call.
        """
        time.sleep(max(0.0, begin_s - time.monotonic()))
        keys = {reference: key for key, [reference] in objects.items()}
        arrived, missing = {}, list(keys)
        while missing:
            [found], missing = ray.wait(missing, num_returns=1, fetch_local=True)
            arrived[keys[found]] = time.monotonic() - begin_s
        return arrived

    def echo(self, payload: bytes) -> bytes:
        """Return what came."""
        return payload


def main() -> None:
    """Measure what is asked for."""
    asked = json.loads(sys.stdin.readline())
    ray.init(logging_level="ERROR", log_to_driver=False)
    labels = {host: {"node": f"n{host}"} for host in range(1, len(ray.nodes()) + 1)}
    actor = ray.remote(num_cpus=0, max_concurrency=4)(Peer)
    peers = {host: actor.options(label_selector=label).remote() for host, label in labels.items()}
    ray.get([peer.echo.remote(b"") for peer in peers.values()])
    for repetition in range(-1, asked["repetitions"]):  # the first one connects, and warms up
        for name, routes in asked["routes"].items():
            for (source, target), seconds in flows(peers, routes, asked["bytes"]).items():
                tell(name, repetition, source, target, asked["bytes"], seconds)
        for payload in (b"", bytes(CALL_BYTES)):
            seconds = mean(call_s(peers[2], payload) for _ in range(CALLS))
            tell("call", repetition, 1, 2, len(payload), seconds)
        tell("call beside an object", repetition, 1, 2, 0, loaded_s(peers, asked["bytes"]))


def flows(
    peers: dict[int, Any], routes: list[list[int]], count: int
) -> dict[tuple[int, int], float]:
    """Let objects travel at once; return (source, target) -> the seconds until each is there."""
    objects = {(source, target): peers[source].make.remote(count) for source, target in routes}
    made = list(objects.values())
    ray.wait(made, num_returns=len(made), fetch_local=False)
    targets = sorted({target for _, target in routes})
    begin_s = time.monotonic() + AHEAD_S
    calls = [
        peers[target].fetch.remote(
            begin_s, {source: [ref] for (source, to), ref in objects.items() if to == target}
        )
        for target in targets
    ]
    arrived = dict(zip(targets, ray.get(calls), strict=True))
    return {(source, target): arrived[target][source] for source, target in objects}


def call_s(peer: Any, payload: bytes) -> float:
    """Return the seconds of a call there and back."""
    begin_s = time.monotonic()
    ray.get(peer.echo.remote(payload))
    return time.monotonic() - begin_s


def loaded_s(peers: dict[int, Any], count: int) -> float:
    """Return the mean time of empty calls while an object travels from the same host to here."""
    made = peers[2].make.remote(count)
    ray.wait([made], fetch_local=False)
    fetching = peers[1].fetch.remote(0.0, {2: [made]})
    times = []
    while not ray.wait([fetching], timeout=0)[0]:
        times.append(call_s(peers[2], b""))
    return mean(times)


def tell(*values: object) -> None:
    """Print a row, unless it is of the warm-up."""
    if values[1] != -1:
        print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
