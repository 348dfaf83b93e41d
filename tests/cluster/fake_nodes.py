"""Runs experiments on three fake nodes in one process, and prints where the actors sat and what was
refused, as JSON.

A process of its own, since the other tests are connected to a cluster already. The GPUs are numbers
to Ray: torch is made to see none, and their types are of no GPU that Ray could find on the machine
of the tests.
"""

import json
import os
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import raysync
from raysync.errors import ConfigError
from raysync.tuning.sweep_run import plan, run
from tests.builders.processes import say

NODES = {
    "head": {"num_cpus": 2, "num_gpus": 0, "labels": {"profile": "head"}},
    "fast": {
        "num_cpus": 4,
        "num_gpus": 3,
        "resources": {"accelerator_type:FAST-1": 1},
        "labels": {"profile": "fast", "zone": "a"},
    },
    "slow": {
        "num_cpus": 4,
        "num_gpus": 3,
        "resources": {"accelerator_type:SLOW-1": 1, "nvlink": 2},
        "labels": {"profile": "slow"},
    },
}


def on(profile):
    return {"label_selector": {"profile": profile}}


PLACED = {
    "by label, type and resource": {
        "workers": [
            {"name": "type", "count": 2, "cpus": 0.5, "gpus": 0.5, "accelerator_type": "FAST-1"},
            {
                "name": "label",
                "cpus": 0.5,
                "gpus": 2,
                "label_selector": {"profile": "!in(head, fast)"},
            },
            {"name": "resource", "cpus": 0.5, "resources": {"nvlink": 1}},
            {
                "name": "fallback",
                "cpus": 0.5,
                "label_selector": {"zone": "b"},
                "fallback_label_selectors": [{"zone": "c"}, {"zone": "a"}],
            },
        ],
        "cluster": {
            "server_shards": 2,
            "server_cpus": 0.5,
            "server_label_selector": {"profile": "head"},
            "evaluator_cpus": 0.5,
        },
    },
    "servers with workers": {
        "workers": [{"name": "a", "gpus": 1, **on("slow")}, {"name": "b", "gpus": 1, **on("fast")}],
        "cluster": {"server_shards": 2, "server_placement": "with-workers"},
    },
    "some share memory": {
        "workers": [{"name": "near", **on("fast")}, {"name": "far", **on("slow")}],
        "cluster": {
            "server_cpus": 0.5,
            "server_label_selector": {"profile": "fast"},
            "transport": "auto",
        },
    },
}
REFUSED = {
    "shared memory across nodes": {
        **PLACED["some share memory"],
        "cluster": PLACED["some share memory"]["cluster"] | {"transport": "shared-memory"},
    },
    "no such label": {"workers": [{"name": "west", "label_selector": {"zone": "west"}}]},
    "too many for label": {"workers": [{"name": "greedy", "count": 4, "gpus": 1, **on("fast")}]},
    "no such type": {"workers": [{"name": "new", "gpus": 1, "accelerator_type": "NEW-1"}]},
    "no such resource": {"workers": [{"name": "odd", "resources": {"tpu": 1}}]},
    "does not pack": {
        "workers": [{"name": "pairs", "count": 3, "gpus": 2}],
        "cluster": {"placement_deadline_s": 1},
    },
}


SWEPT = {
    "workers": [
        [{"name": "w", "gpus": 1, **on("slow"), "resources": {"nvlink": 2}}],
        [{"name": "w", "count": 3, "gpus": 2}],
    ]
}
"""The second one fits nowhere, but only Ray finds out."""


def swept(folder, tiny):
    """Status, error and the node of each worker, of a sweep's trials."""
    file = folder / "sweep.yaml"
    file.write_text(
        json.dumps({**tiny, "cluster": {"placement_deadline_s": 1}, "sweep": {"grid": SWEPT}})
    )
    record, _ = run(plan(file), notify=print, show=lambda status: None)
    profiles = {node["NodeID"]: node["Labels"]["profile"] for node in ray.nodes()}
    places = {trial: one.environment["places"] for trial, one in record.records.items()}
    where = {
        trial: {name: profiles[place["node_id"]] for name, place in of.items()}
        for trial, of in places.items()
    }
    return [[row.status, row.error, where.get(row.trial)] for row in record.table.itertuples()]


def blinded():
    """Called in every process that Ray starts."""
    import torch

    torch.cuda.is_available = lambda: False


def main(output):
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray starts no node with more GPUs than it names
    cluster = Cluster(
        initialize_head=True, head_node_args={**NODES["head"], "include_dashboard": False}
    )
    try:
        for node in ("fast", "slow"):
            cluster.add_node(**NODES[node])
        ray.init(
            address=cluster.address,
            logging_level="ERROR",
            log_to_driver=False,
            runtime_env={"worker_process_setup_hook": blinded},
        )
        profiles = {node["NodeID"]: node["Labels"]["profile"] for node in ray.nodes()}
        tiny = {
            "data": {"name": "digits", "train_samples": 80, "test_samples": 20},
            "batch_size": 8,
            "workload": {"samples": 80},
            "evaluation": {"marks": 1},
            "output": output,
        }
        told, refused = [], {}
        for experiment in PLACED.values():
            record = raysync.run(tiny | experiment, notify=told.append)
            places = json.loads((record.path / "environment.json").read_text())["places"]
            for name, place in places.items():
                profile = profiles[place["node_id"]]
                say("placed", [name, profile, place["gpus"], place["devices"]])
        say("transports", {name: place["transport"] for name, place in places.items()})
        say("swept", swept(Path(output), tiny))
        for name, experiment in REFUSED.items():
            try:
                raysync.run(tiny | experiment)
            except ConfigError as error:
                refused[name] = str(error)
        say("told", told)
        say("refused", refused)
        left = ray.available_resources()
        say("left", [left.get(name) for name in ("CPU", "GPU", "nvlink")])
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(str(Path(sys.argv[1])))
