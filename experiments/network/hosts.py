"""Hosts of a real network on one Linux machine: network namespaces, joined by a bridge that has a
namespace of its own, each behind a link of a limited rate both ways. TCP over it is real.

    with Hosts(3, 100e6) as hosts:
        hosts.run(1, ["ping", "-c", "1", hosts.address(2)])
        hosts.cut(2)

It needs root, iproute2 and util-linux. All hosts share the machine's cores, disk and clocks.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

BURST_BYTES = 64 * 1024
"""What may leave a link at once: the largest packet that the kernel hands over."""
QUEUE_S = 0.05
"""How long a packet may wait before a link: what waits longer is dropped."""
CONGESTION = "cubic"
"""TCP's congestion control, Linux's default whatever this machine has."""
DEVICE = "eth0"
NETWORK = "10.77.0"
"""The first three numbers of the addresses, which nothing outside of the namespaces sees."""
RAY_PORT = 6379
RAY = str(Path(sys.executable).with_name("ray"))
RAY_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
COMMANDS = ("ip", "tc", "nsenter", "unshare")
NAMESPACES = Path("/run/netns")


def available() -> str:
    """Say why there can be no such hosts here; "" if there can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are a part of Linux"
    if missing := [name for name in COMMANDS if shutil.which(name) is None]:
        return f"{' and '.join(missing)} must be installed (iproute2, util-linux)"
    if os.geteuid():
        return "only root can make network namespaces"
    probe = f"rs{os.getpid()}p"
    try:
        _do(f"ip netns add {probe}")
    except RuntimeError as error:
        return f"network namespaces cannot be made here ({error})"
    try:
        _do(f"tc qdisc add dev lo root {_limit(1e6)}", probe)
    except RuntimeError as error:
        return f"links cannot be limited here ({error})"
    finally:
        _remove(probe)
    return ""


class Hosts:
    """Hosts 1, 2, ..., from `__enter__` to `__exit__`; these end with all that runs on them."""

    def __init__(self, count: int, rate_bit_per_s: float | Sequence[float]) -> None:
        """
        Args:
            count: how many.
            rate_bit_per_s: of the link of every host, each way, or of each host's.
        """
        rates = rate_bit_per_s
        self.rates = [rates] * count if isinstance(rates, int | float) else list(rates)
        assert len(self.rates) == count, f"{len(self.rates)} rates for {count} hosts"
        self._name = f"rs{os.getpid()}n"
        self._switch = f"{self._name}s"
        self._closing = ExitStack()
        self._first: list[int] = []
        """The first process of each host, in whose namespaces all others run."""

    def __enter__(self) -> Hosts:
        with ExitStack() as undo:
            undo.callback(self._take_down)
            self._build()
            self._closing = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def numbers(self) -> range:
        """The numbers of the hosts."""
        return range(1, len(self.rates) + 1)

    def address(self, host: int) -> str:
        """Return the IP address of a host."""
        return f"{NETWORK}.{host}"

    def run(self, host: int, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess:
        """Run a command on a host to its end; options are those of `subprocess.run`."""
        return subprocess.run([*self._on(host), *command], **options)

    def start(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen:
        """Start a command on a host; options are those of `subprocess.Popen`."""
        return subprocess.Popen([*self._on(host), *command], **options)

    def cut(self, host: int) -> None:
        """Cut the link of a host: nothing arrives, and no connection is told of it."""
        _do(f"ip link set {self._port(host)} down", self._switch)

    def heal(self, host: int) -> None:
        """Mend the link of a host."""
        _do(f"ip link set {self._port(host)} up", self._switch)

    def set_rates(self, rates_bit_per_s: Sequence[float]) -> None:
        """Give the links of all hosts these rates, each way."""
        for host, rate in zip(self.numbers, rates_bit_per_s, strict=True):
            self.set_rate(host, rate)

    def set_rate(self, host: int, rate_bit_per_s: float) -> None:
        """Give the link of a host another rate, each way."""
        self.rates[host - 1] = rate_bit_per_s
        limit = _limit(rate_bit_per_s)
        _do(f"tc qdisc replace dev {DEVICE} root {limit}", self._namespace(host))
        _do(f"tc qdisc replace dev {self._port(host)} root {limit}", self._switch)

    def _build(self) -> None:
        _remove_those_of_the_dead()
        switch = self._switch
        _do(f"ip netns add {switch}")
        _do("ip link add br0 type bridge", switch)
        _do("ip link set br0 up", switch)
        for host, rate in zip(self.numbers, self.rates, strict=True):
            name, port, address = self._namespace(host), self._port(host), self.address(host)
            _do(f"ip netns add {name}")
            _do(f"ip link add {DEVICE} netns {name} type veth peer name {port} netns {switch}")
            _do(f"ip link set {port} master br0 up", switch)
            _do("ip link set lo up", name)
            _do(f"ip addr add {address}/24 dev {DEVICE}", name)
            _do(f"ip link set {DEVICE} up", name)
            route = f"{NETWORK}.0/24 dev {DEVICE} src {address}"
            _do(f"ip route replace {route} congctl {CONGESTION}", name)
            self.set_rate(host, rate)
            self._first.append(_first_process(name))

    def _take_down(self) -> None:
        for name in (*map(self._namespace, self.numbers), self._switch):
            _remove(name)

    def _on(self, host: int) -> list[str]:
        """Return what a command begins with that is to run on a host."""
        first = self._first[host - 1]
        return ["nsenter", f"--target={first}", "--net", "--pid", "--mount"]

    def _namespace(self, host: int) -> str:
        return f"{self._name}{host}"

    def _port(self, host: int) -> str:
        return f"port{host}"


class RayHosts(Hosts):
    """Hosts with a Ray cluster over them: the head is on host 1, and node N has the label
    `node: nN`.
    """

    def __init__(
        self,
        count: int,
        rate_bit_per_s: float | Sequence[float],
        cpus: Sequence[int] = (),
        object_store_bytes: int = 400_000_000,
    ) -> None:
        """
        Args:
            count: see `Hosts`.
            rate_bit_per_s: see `Hosts`.
            cpus: what each host declares to Ray; default: 8.
            object_store_bytes: the size of each object store.
        """
        super().__init__(count, rate_bit_per_s)
        self._cpus = cpus or [8] * count
        self._store_bytes = object_store_bytes

    @property
    def ray_address(self) -> str:
        """Where the cluster can be joined, from any host."""
        return f"{self.address(1)}:{RAY_PORT}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a program that joins the cluster."""
        return {**os.environ, **RAY_ENVIRONMENT, "RAY_ADDRESS": self.ray_address}

    def _build(self) -> None:
        super()._build()
        self._folder = Path(tempfile.mkdtemp(prefix="rs-"))  # short: it holds sockets
        for host in self.numbers:
            self.start_node(host)

    def start_node(self, host: int) -> None:
        """Start the Ray node of a host, which joins the cluster."""
        first = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
        there = first if host == 1 else [f"--address={self.ray_address}"]
        options = [
            *there,
            f"--node-ip-address={self.address(host)}",
            f"--temp-dir={self._folder}",
            f"--num-cpus={self._cpus[host - 1]}",
            f"--object-store-memory={self._store_bytes}",
            f"--labels=node=n{host}",
        ]
        own = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        started = self.run(
            host,
            [RAY, "start", *options],
            env=own | RAY_ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        if started.returncode:
            raise RuntimeError(f"ray start on host {host}: {started.stdout}{started.stderr}")

    def _take_down(self) -> None:
        super()._take_down()
        if folder := getattr(self, "_folder", None):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that hosts are taken down."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _first_process(namespace: str) -> int:
    """Start the first process of a host, and return its id here. Each host sees its own processes
    only: otherwise a driver takes the first Ray node of the machine for that of its host.
    """
    first = ["sh", "-c", "echo; sleep infinity & wait"]  # it also reaps the orphans of the host
    command = [*_in(namespace), "unshare", "--pid", "--mount-proc", "--fork", *first]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()  # it runs
    return int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()[0])


def _in(namespace: str) -> list[str]:
    return ["ip", "netns", "exec", namespace]


def _limit(rate_bit_per_s: float) -> str:
    return f"tbf rate {rate_bit_per_s:.0f}bit burst {BURST_BYTES}b latency {QUEUE_S * 1000:.0f}ms"


def _do(command: str, namespace: str = "") -> str:
    """Run a command, in a namespace, and return what it says."""
    words = [*(_in(namespace) if namespace else []), *command.split()]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")
    return done.stdout


def _remove(namespace: str) -> None:
    """Remove a namespace, if it is there, and kill what runs in it."""
    if not (NAMESPACES / namespace).exists():
        return
    for _ in range(50):
        pids = _do(f"ip netns pids {namespace}").split()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if not pids:
            break
        time.sleep(0.1)  # until they are gone, and what they were just starting
    _do(f"ip netns del {namespace}")


def _remove_those_of_the_dead() -> None:
    """Remove the namespaces of programs that were killed and could not do it."""
    for path in NAMESPACES.glob("rs*n*"):
        pid = path.name.removeprefix("rs").partition("n")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            _remove(path.name)
