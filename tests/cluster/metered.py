"""A process with a Ray cluster of its own: prints its session's folder, and then the record of each
run.
"""

import json
import logging
import sys

import ray

from raysync import config
from raysync.cluster.session import Session
from raysync.running.run import run_in
from raysync.training.preparation import prepare


def main(experiments):
    ray_context = ray.init(
        address="local",
        num_cpus=8,
        num_gpus=1,
        resources={"accelerator_type:T4": 1},  # as declared
        include_dashboard=True,
        dashboard_port=0,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
        _system_config={"metrics_report_interval_ms": 1000},
    )
    say(ray_context.address_info["session_dir"])
    with Session() as session:
        for settings in experiments:
            experiment = config.validate(settings)
            say(str(run_in(session, prepare(experiment), experiment.paradigm).path))
        sys.stdin.read()  # until what all this was for has been seen
    ray.shutdown()


def say(value):
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
