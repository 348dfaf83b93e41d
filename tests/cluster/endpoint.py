"""A process with a Ray cluster of its own, where an actor publishes one run after the other: prints
the runs that the endpoint of Ray's agent then shows.
"""

import logging
import re
from threading import Event
from urllib.request import urlopen

import ray

from raysync.cluster import monitoring
from raysync.record.collector import Collected
from tests.builders.processes import say

SHOWN = re.compile(r'^ray_raysync_pushes_total\{.*\brun="(\w+)".*\} 0(\.0)?$', re.MULTILINE)
DEADLINE_S = 30


class Publishing:
    def __init__(self):
        monitoring.MOST_RUNS = 1
        self.exporter = monitoring.Exporter()

    def publish(self, run):
        labels = ("the experiment", run, "bsp")
        counters = {("raysync_pushes", (*labels, "fast-0")): 0.0}
        self.exporter.publish(lambda: Collected(labels, counters))


def main():
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
        _system_config={"metrics_report_interval_ms": 1000},
    )
    url = f"http://127.0.0.1:{ray.nodes()[0]['MetricsExportPort']}/metrics"
    process, shown = ray.remote(Publishing).remote(), []
    for run in ("first", "second", "first"):
        ray.get(process.publish.remote(run))
        shown.append(runs_shown(url, [run]))
    say("shown", shown)
    ray.shutdown()


def runs_shown(url, expected):
    for _ in range(5 * DEADLINE_S):
        with urlopen(url, timeout=10) as answer:
            shown = sorted({run for run, _ in SHOWN.findall(answer.read().decode())})
        if shown == expected:
            break
        Event().wait(0.2)
    return shown


if __name__ == "__main__":
    main()
