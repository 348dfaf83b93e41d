"""Measure the network of the hosts itself, plain and through Ray: results/network.links.csv.

    python experiments/network/links.py    (5 minutes, as root)

A row is a flow (or a call) of a repetition: how long after the common beginning it had arrived.
"""

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hosts import Hosts, RayHosts, available, ended_by_sigterm

HERE = Path(__file__).parent
RATE = 100e6
COUNT = 4
FLOW_BYTES = 12_000_000
REPETITIONS = 10
AHEAD_S = 0.3
"""How long before the beginning the senders are told of it, to connect."""
ROUTES = {
    "one": [(2, 1)],
    "two into one": [(2, 1), (3, 1)],
    "three into one": [(2, 1), (3, 1), (4, 1)],
    "one into three": [(1, 2), (1, 3), (1, 4)],
    "all to all": [(source, to) for source in (2, 3, 4) for to in (2, 3, 4) if source != to],
}
"""Name -> the flows that begin at once: from host, to host."""
FIELDS = ("way", "flows", "repetition", "source", "target", "bytes", "rate_bit_per_s", "seconds")


@contextmanager
def peers(hosts: Hosts) -> Iterator[Mapping[int, subprocess.Popen]]:
    """Start a peer on each host."""
    command = [sys.executable, str(HERE / "flows.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    started = {host: hosts.start(host, command, **pipes) for host in hosts.numbers}
    for peer in started.values():
        assert peer.stdout is not None
        peer.stdout.readline()  # ready
    yield started
    for peer in started.values():
        peer.kill()
        peer.wait()


def plain(
    hosts: Hosts, running: Mapping[int, subprocess.Popen], routes: list[tuple[int, int]]
) -> dict[tuple[int, int], float]:
    """Let flows begin at once; return the seconds after which each had arrived."""
    begin_s = time.monotonic() + AHEAD_S
    for source, target in routes:
        print("send", hosts.address(target), FLOW_BYTES, begin_s, file=running[source].stdin)
    arrived = {}
    for target in {target for _, target in routes}:
        for _ in [each for each in routes if each[1] == target]:
            sender, last_s = running[target].stdout.readline().split()
            arrived[int(sender.rpartition(".")[2]), target] = float(last_s) - begin_s
    return arrived


def plain_rows(hosts: Hosts) -> Iterator[dict]:
    """Yield the rows of plain flows."""
    with peers(hosts) as running:
        for repetition in range(REPETITIONS):
            for name, routes in ROUTES.items():
                for (source, target), seconds in plain(hosts, running, routes).items():
                    yield row("TCP", name, repetition, source, target, FLOW_BYTES, seconds)


def row(
    way: str, flows: str, repetition: int, source: int, target: int, count: int, seconds: float
) -> dict:
    """Return a row of the table."""
    values = (way, flows, repetition, source, target, count, int(RATE), f"{seconds:.6f}")
    return dict(zip(FIELDS, values, strict=True))


def ray_rows(hosts: RayHosts) -> Iterator[dict]:
    """Yield the rows that a driver on host 1 measures."""
    command = [sys.executable, str(HERE / "objects.py")]
    driver = hosts.start(
        1, command, env=hosts.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    asked = {"routes": ROUTES, "bytes": FLOW_BYTES, "repetitions": REPETITIONS}
    assert driver.stdin is not None
    assert driver.stdout is not None
    print(json.dumps(asked), file=driver.stdin, flush=True)
    for line in driver.stdout:
        yield row("Ray", *json.loads(line))
    assert driver.wait() == 0, "the driver failed"


def main() -> None:
    """Measure, and write the rows as they come."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    if reason := available():
        sys.exit(f"There can be no hosts here: {reason}.")
    with (
        ended_by_sigterm(),
        (HERE / "results" / "network.links.csv").open("w", newline="", encoding="utf-8") as file,
    ):
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        with RayHosts(COUNT, RATE) as hosts:
            for rows in (plain_rows, ray_rows):
                for each in rows(hosts):
                    table.writerow(each)
                    file.flush()
                    print(*each.values())


if __name__ == "__main__":
    main()
