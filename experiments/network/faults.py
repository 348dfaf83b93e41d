"""Cut hosts off, and slow their links down, in the midst of a run: results/network.faults.csv.

    python experiments/network/faults.py RUNS                        (40 minutes, as root)
    python experiments/network/faults.py RUNS --faults "worker cut"

A row is a fault and a paradigm. Each has a cluster of its own, since a node that Ray has given up
is gone for good.
"""

import argparse
import csv
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from cases import EXPERIMENT, FAST, SLOW
from hosts import RayHosts, available, ended_by_sigterm
from measure import RAYSYNC

from raysync.record.reader import load

TABLE = Path(__file__).parent / "results" / "network.faults.csv"
FIELDS = ("fault", "paradigm", "ended", "seconds", "pushes", "twice", "missing", "model", "said")
HEAD, SERVER, WORKER, DRIVER = 1, 2, 3, 4
"""The hosts: the head alone, the server with its controller, a worker, and one with the driver,
which has a worker as well, as the fifth."""
CPUS = (0, 3, 2, 2, 2)
"""What the hosts declare to Ray."""
FOR_EVER = float("inf")
PUSHES = 12
"""The journal lines after which a fault begins."""
LONGEST_S = 240.0


@dataclass(frozen=True)
class Fault:
    """What happens to a host."""

    host: int
    seconds: float = FOR_EVER
    rate_bit_per_s: float = 0.0
    """The rate of its link meanwhile; 0: it is cut."""

    def happen(self, hosts: RayHosts, ended: Callable[[], bool]) -> None:
        """Let it begin now, and end in its time or with the run."""
        if self.rate_bit_per_s:
            hosts.set_rate(self.host, self.rate_bit_per_s)
        else:
            hosts.cut(self.host)
        over_s = time.monotonic() + min(self.seconds, LONGEST_S)
        while time.monotonic() < over_s and not ended():
            time.sleep(0.2)
        if self.rate_bit_per_s:
            hosts.set_rate(self.host, FAST)
        elif self.seconds < FOR_EVER:
            hosts.heal(self.host)


FAULTS: dict[str, Fault | None] = {
    "none": None,
    **{
        f"{name} cut, {'for ever' if seconds == FOR_EVER else f'{seconds:.0f} s'}": Fault(
            host, seconds
        )
        for name, host in (("worker", WORKER), ("server", SERVER), ("head", HEAD))
        for seconds in (5.0, 20.0, 60.0, FOR_EVER)
    },
    "worker at a quarter of its rate, 20 s": Fault(WORKER, 20.0, SLOW),
    "server at a quarter of its rate, 20 s": Fault(SERVER, 20.0, SLOW),
}
SETTINGS = (
    "model.hidden=[463, 463]",
    "cluster.server_label_selector={node: n2}",
    "cluster.evaluator_cpus=0",
    "workers.0.label_selector={node: n3}",
    "workers.1.label_selector={node: n4}",
    "workers.2.label_selector={node: n5}",
)


def run(
    hosts: RayHosts, fault: Fault | None, paradigm: str, output: Path, iterations: int = 40
) -> dict[str, object]:
    """Run under a paradigm while a fault happens; return what came of it."""
    settings = [
        *SETTINGS,
        f"output={output}",
        f"paradigms=[{paradigm}]",
        f"workload.iterations_per_worker={iterations}",
    ]
    command = [RAYSYNC, "compare", str(EXPERIMENT)]
    for setting in settings:
        command += ["--set", setting]
    output.mkdir(parents=True)
    with (output / "log.txt").open("w", encoding="utf-8") as log:
        begun_s = time.monotonic()
        driver = hosts.start(
            DRIVER, command, env=hosts.environment, stdout=log, stderr=subprocess.STDOUT
        )
        while driver.poll() is None and _lines(output) < PUSHES:
            time.sleep(0.1)
        if fault is not None:
            fault.happen(hosts, lambda: driver.poll() is not None)
        try:
            code = driver.wait(max(1.0, begun_s + LONGEST_S - time.monotonic()))
            ended = "finished" if code == 0 else f"exit {code}"
        except subprocess.TimeoutExpired:
            ended = f"went on after {LONGEST_S:.0f} s"
            driver.kill()
            driver.wait()
    took_s = time.monotonic() - begun_s
    return {"ended": ended, "seconds": f"{took_s:.0f}", **accounts(output), "said": said(output)}


def accounts(output: Path) -> dict[str, object]:
    """Return how many pushes there are, which are there twice or missing, and the model's hash."""
    found = {"pushes": "", "twice": "", "missing": "", "model": ""}
    for path in output.glob("*/*/journal.jsonl"):
        pushes = load(path.parent).pushes
        slots = pushes.worker.str.partition("#")[0]
        clocks = pushes.clock.groupby(slots)
        found["pushes"] = len(pushes)
        found["twice"] = int(clocks.apply(lambda each: each.duplicated().sum()).sum())
        found["missing"] = int(clocks.apply(lambda each: each.max() + 1 - each.nunique()).sum())
        model = path.parent / "model.safetensors"
        if model.is_file():
            found["model"] = blake2b(model.read_bytes(), digest_size=4).hexdigest()
    return found


def said(output: Path) -> str:
    """Return the line of the log that says why a run failed."""
    lines = (output / "log.txt").read_text(encoding="utf-8").splitlines()
    return next((line.strip() for line in lines if " failed: " in line), "")


def _lines(output: Path) -> int:
    """Return how many lines the journal of the run has so far."""
    found = [path.read_bytes().count(b"\n") for path in output.glob("*/*/journal.jsonl")]
    return max(found, default=0)


def main() -> None:
    """Run under each fault, and write the rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="a folder for the records")
    parser.add_argument("--faults", default="", help="only those whose name has this in it")
    parser.add_argument("--paradigms", nargs="*", default=["bsp", "asp", "ssp"])
    given = parser.parse_args()
    if reason := available():
        sys.exit(f"There can be no hosts here: {reason}.")
    begun = not TABLE.is_file()
    with ended_by_sigterm(), TABLE.open("a", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if begun:
            table.writeheader()
        for name, fault in FAULTS.items():
            for paradigm in given.paradigms if given.faults in name else ():
                output = given.runs.absolute() / time.strftime("%Y%m%d-%H%M%S")
                with RayHosts(5, FAST, CPUS) as hosts:
                    found = run(hosts, fault, paradigm, output)
                table.writerow({"fault": name, "paradigm": paradigm, **found})
                file.flush()
                print(name, paradigm, *found.values(), flush=True)


if __name__ == "__main__":
    main()
