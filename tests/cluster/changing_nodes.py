"""Trains on a node that is lost, on one that is added for it, on one that is drained, and on the
next, and prints what happened, as JSON: `SCHEDULE` says what is done when.

A process of its own, since the other tests are connected to a cluster already.
"""

import subprocess
import sys

import ray
from ray.cluster_utils import Cluster

from raysync import config
from raysync.cluster.session import Session
from raysync.core.decisions import Apply
from raysync.core.events import Left, Pushed
from raysync.core.journal import Entry, Remark
from raysync.paradigms import make
from raysync.training.preparation import prepare
from tests.builders.processes import say

EXPERIMENT = {
    "data": {"name": "digits", "train_samples": 80, "test_samples": 20},
    "model": {"name": "mlp", "hidden": [1024]},
    "batch_size": 8,
    "workload": {"samples": 80_000},
    "evaluation": {"marks": 1},
    "workers": [
        {"name": "steady", "step_s": 0.1, "cpus": 0.5, "resources": {"steady": 1}},
        {"name": "spot", "count": 2, "step_s": 0.3, "cpus": 0.5, "resources": {"spot": 1}},
    ],
    "cluster": {
        "server_cpus": 0.5,
        "evaluator_cpus": 0,
        "min_workers": 2,
        "restarts": {"attempts": 1, "backoff_s": 0.1},
    },
}
"""Gradients of 300 KB: Ray does not send them along with the report."""
SCHEDULE = [
    ("pushed twice", 1, "lose the node"),
    ("waits for resources", 2, "add a node"),
    ("pushed twice", 2, "drain the node"),
    ("waits for resources", 3, "add a node, and take the drained one away"),
    ("pushed twice", 3, ""),
]
"""Done by both workers on the node, in that life -> what is done then."""


class Nodes:
    """The cluster: a head that stays, and nodes that do not."""

    def __init__(self):
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 2, "resources": {"steady": 1}, "include_dashboard": False},
        )
        self.nodes = [self._added()]

    def _added(self):
        return self.cluster.add_node(num_cpus=1, resources={"spot": 2})

    def change(self, how):
        match how:
            case "lose the node":
                self.cluster.remove_node(self.nodes.pop(0))
            case "add a node":
                self.nodes.append(self._added())
            case "drain the node":
                subprocess.run(
                    [
                        *(sys.executable, "-m", "ray.scripts.scripts", "drain-node"),
                        *("--address", self.cluster.address, "--node-id", self.nodes[0].node_id),
                        *("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"),
                    ],
                    check=True,
                    capture_output=True,
                )
            case "add a node, and take the drained one away":
                self.nodes.append(self._added())
                self.cluster.remove_node(self.nodes.pop(0))


def told(line, pushed_at):
    """Print what a line says of the workers, given when each has pushed last."""
    match line:
        case Entry(event=Left(at=at, worker=worker), report=report):
            say("left", [worker, report.why, at - pushed_at.get(worker, 0)])
        case Entry(event=Pushed(worker=worker, clock=clock)):
            say("pushed", [worker, clock])
        case Remark(text=text):
            say("remark", text)
    for decision in line.decisions if isinstance(line, Entry) else ():
        if isinstance(decision, Apply):
            say("applied", decision.pushes[0])


def main():
    nodes, schedule = Nodes(), list(SCHEDULE)
    done, pushed_at = set(), {}
    try:
        ray.init(address=nodes.cluster.address, logging_level="ERROR", log_to_driver=False)
        training = prepare(config.validate(EXPERIMENT))
        with Session() as session:
            for line in (each for lines in session.run(training, make("asp")) for each in lines):
                told(line, pushed_at)
                if isinstance(line, Entry) and isinstance(line.event, Pushed):
                    worker = line.event.worker
                    done |= {(worker, "pushed twice")} if worker in pushed_at else set()
                    pushed_at[worker] = line.event.at
                if isinstance(line, Remark) and "waits for resources" in line.text:
                    done.add((line.text.partition(" ")[0], "waits for resources"))
                what, life, then = schedule[0]
                if {(f"spot-{index}#{life}", what) for index in range(2)} <= done:
                    schedule.pop(0)
                    nodes.change(then)
                if not schedule:
                    say("over", "well")
                    break
    finally:
        ray.shutdown()
        nodes.cluster.shutdown()


if __name__ == "__main__":
    main()
