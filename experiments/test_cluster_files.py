"""The examples in `jobs`: against the schemas of who reads them, and against
each other.
"""

import json
from copy import deepcopy
from pathlib import Path

import jsonschema
import pytest
import ray.autoscaler
import yaml
from ray.runtime_env import RuntimeEnv

from raysync import config
from raysync.cluster.placement import ClusterNode, infeasible_reason, plan

JOBS = Path(__file__).parent / "clusters" / "jobs"

TEXT, COUNT, TEXTS = (
    {"type": "string"},
    {"type": "integer", "minimum": 0},
    {"type": "object", "additionalProperties": {"type": "string"}},
)


def closed(required, **properties):
    return {
        "type": "object",
        "required": required.split(),
        "properties": properties,
        "additionalProperties": False,
    }


CONTAINER = closed(
    "name image resources",
    name=TEXT,
    image=TEXT,
    resources=closed("", requests=TEXTS, limits=TEXTS),
    ports={"type": "array", "items": closed("containerPort", containerPort=COUNT, name=TEXT)},
    volumeMounts={"type": "array", "items": closed("name mountPath", name=TEXT, mountPath=TEXT)},
)
VOLUME = closed("name", name=TEXT, persistentVolumeClaim=closed("claimName", claimName=TEXT))
TEMPLATE = closed(
    "spec",
    spec=closed(
        "containers",
        containers={"type": "array", "minItems": 1, "items": CONTAINER},
        nodeSelector=TEXTS,
        volumes={"type": "array", "items": VOLUME},
    ),
)
GROUP = {"labels": TEXTS, "resources": TEXTS, "rayStartParams": TEXTS, "template": TEMPLATE}
WORKERS = closed(
    "groupName minReplicas maxReplicas template",
    **GROUP,
    groupName=TEXT,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    numOfHosts=COUNT,
    idleTimeoutSeconds=COUNT,
)
RAYJOB = closed(
    "apiVersion kind metadata spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=closed("name", name=TEXT, labels=TEXTS, namespace=TEXT),
    spec=closed(
        "entrypoint rayClusterSpec",
        entrypoint=TEXT,
        runtimeEnvYAML=TEXT,
        metadata=TEXTS,
        jobId=TEXT,
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
        backoffLimit=COUNT,
        activeDeadlineSeconds=COUNT,
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
        suspend={"type": "boolean"},
        entrypointNumCpus={"type": "number"},
        entrypointNumGpus={"type": "number"},
        rayClusterSpec=closed(
            "headGroupSpec",
            rayVersion=TEXT,
            enableInTreeAutoscaling={"type": "boolean"},
            headGroupSpec=closed("template", **GROUP, serviceType=TEXT),
            workerGroupSpecs={"type": "array", "items": WORKERS},
        ),
    ),
)
"""The fields that matter here of what KubeRay takes: ray-operator/apis/ray/v1/rayjob_types.go and
raycluster_types.go of github.com/ray-project/kuberay (with `labels`, so 1.5 or newer), and of
Kubernetes' PodSpec."""


def read(name):
    return yaml.safe_load((JOBS / name).read_text(encoding="utf-8"))


def nodes_of_kuberay():
    spec = read("kuberay.yaml")["spec"]["rayClusterSpec"]
    for group in (spec["headGroupSpec"] | {"minReplicas": 1}, *spec["workerGroupSpecs"]):
        [container] = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        assert limits == container["resources"]["requests"]
        resources = {"CPU": float(limits["cpu"]), "GPU": float(limits.get("nvidia.com/gpu", 0))}
        yield from [ClusterNode(resources, group["labels"])] * group["minReplicas"]


def nodes_of_aws():
    file = read("aws.yaml")
    for name, kind in file["available_node_types"].items():
        count = 1 if name == file["head_node_type"] else kind["min_workers"]
        yield from [ClusterNode(dict(kind["resources"]), kind["labels"])] * count


def test_the_rayjob_fits_the_schema():
    file = read("kuberay.yaml")
    jsonschema.validate(file, RAYJOB)
    wrong = deepcopy(file)
    wrong["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["label"] = {"gpu": "a10g"}
    with pytest.raises(jsonschema.ValidationError, match="label"):
        jsonschema.validate(wrong, RAYJOB)
    environment = RuntimeEnv(**yaml.safe_load(file["spec"]["runtimeEnvYAML"]))
    assert environment.has_working_dir()


def test_the_launcher_file_fits_the_schema_of_this_ray():
    schema = json.loads(
        (Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8")
    )
    jsonschema.validate(read("aws.yaml"), schema)


@pytest.mark.parametrize("nodes", [nodes_of_kuberay, nodes_of_aws])
def test_the_experiment_fits_on_the_nodes_by_their_labels(nodes):
    experiment = config.load(JOBS / "two-gpus.yaml")
    there = list(nodes())
    assert infeasible_reason(plan(experiment).bundles, there) is None
    assert infeasible_reason(plan(experiment).bundles, there[:-1]) == "worker group 't4'"
    bare = [ClusterNode(node.resources, {}) for node in there]
    assert infeasible_reason(plan(experiment).bundles, bare) is not None


def test_what_is_run_is_there():
    entrypoint = read("kuberay.yaml")["spec"]["entrypoint"].split()
    assert entrypoint[:2] == ["raysync", "run"]
    assert (JOBS.parents[2] / entrypoint[2]).samefile(JOBS / "two-gpus.yaml")
