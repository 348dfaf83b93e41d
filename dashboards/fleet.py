"""The dashboard of the fleet: the nodes and their hardware, how busy they are, and the workers on
them.

The names beginning with `ray_` but not with `ray_raysync_` are Ray's own: its agents'
(`ray_node_...`), its raylets' (`ray_resources`, `ray_object_store_memory`), its control store's
(`ray_actors`).
"""

from __future__ import annotations

from dashboards.panels import Board, Panel, Row, Variable, or_none, series

NODES = 'instance=~"$node"'
NODE = "{{instance}}"
GPU = "{{instance}}, {{GpuDeviceName}} {{GpuIndex}}"
NO_GPU = "No GPU that Ray can measure on these nodes"


def board() -> Board:
    """Return the dashboard."""
    return Board(
        uid="raysync-fleet",
        title="raysync: the fleet",
        about=(
            "Nodes with their accelerators, what they are busy with, and the workers of all runs. A"
            " node is named after its metrics endpoint (address and port), as on Ray's own"
            " dashboards."
        ),
        variables=[Variable("node", "Node", "label_values(ray_node_cpu_count, instance)")],
        rows=[_now(), _workers(), _nodes(), _gpus()],
    )


def _resource(name: str, by: str = "", state: str = "") -> str:
    """Return one of Ray's logical resources: what was declared, not what is measured."""
    selector = f'Name="{name}", {NODES}' + (f', State="{state}"' if state else "")
    grouping = f"by ({by}) " if by else ""
    return f"sum {grouping}(ray_resources{{{selector}}})"


def _of_nodes(name: str) -> str:
    return f"sum by (instance) ({name}{{{NODES}}})"


def _of_gpus(name: str) -> str:
    return f"sum by (instance, GpuDeviceName, GpuIndex) ({name}{{{NODES}}})"


def _now() -> Row:
    return Row(
        "Now",
        columns=6,
        height=4,
        panels=[
            Panel("Nodes", "short", {"nodes": f"count (ray_node_cpu_count{{{NODES}}})"}, "numbers"),
            Panel(
                "CPUs", "short", {"CPUs": _resource("CPU")}, "numbers", note="As declared to Ray."
            ),
            Panel(
                "GPUs",
                "short",
                {"GPUs": or_none(_resource("GPU"))},
                "numbers",
                note="As declared to Ray.",
            ),
            Panel(
                "Runs going on",
                "short",
                {"runs": or_none(f"count (count by (run) ({series('raysync_workers_live')} > 0))")},
                "numbers",
                note="On all nodes.",
            ),
            Panel(
                "Workers live",
                "short",
                {"workers": or_none(f"sum ({series('raysync_workers_live')})")},
                "numbers",
                note="Of all runs, on all nodes.",
            ),
            Panel(
                "Actors alive",
                "short",
                {"actors": or_none('sum (ray_actors{Source="gcs", State="ALIVE"})')},
                "numbers",
                note=(
                    "Of Ray, on all nodes: workers, servers, controllers, evaluators, and others'."
                ),
            ),
        ],
    )


def _workers() -> Row:
    return Row(
        "Workers and what they are given",
        [
            Panel(
                "Workers live, by run",
                "short",
                {
                    "{{paradigm}} ({{run}})": or_none(
                        f"sum by (run, paradigm) ({series('raysync_workers_live')})", "paradigm"
                    )
                },
                stacked=True,
                note="A constant 0 (none) while there is no run.",
            ),
            Panel(
                "Actors alive, by class",
                "short",
                {
                    "{{Name}}": or_none(
                        'sum by (Name) (ray_actors{Source="gcs", State="ALIVE"})', "Name"
                    )
                },
                stacked=True,
                note="A constant 0 (none) while there is no actor.",
            ),
            Panel(
                "Nodes by type of accelerator",
                "short",
                {
                    "{{Name}}": or_none(
                        f'sum by (Name) (ray_resources{{Name=~"accelerator_type:.+", {NODES}}})',
                        "Name",
                    )
                },
                "bars",
                note=(
                    "Nodes of each type: Ray keeps the label of a node's GPUs as a resource too,"
                    " one of each. It publishes no other labels of nodes. A single 0 (none) without"
                    " accelerators."
                ),
            ),
            Panel(
                "CPUs taken, share by node",
                "percentunit",
                {NODE: f"{_resource('CPU', 'instance', 'USED')} / {_resource('CPU', 'instance')}"},
                top=1,
                note="As declared to Ray, not as measured.",
            ),
            Panel(
                "GPUs taken, by node",
                "short",
                {NODE: or_none(_resource("GPU", "instance", "USED"), "instance")},
                note="As declared to Ray, not as measured. A constant 0 (none) without GPUs.",
            ),
            Panel(
                "Ray's object store, by node",
                "bytes",
                {NODE: _of_nodes("ray_object_store_memory")},
                note="Gradients and weights on their way.",
            ),
        ],
    )


def _nodes() -> Row:
    return Row(
        "Nodes, measured",
        columns=2,
        panels=[
            Panel(
                "CPU utilisation, by node",
                "percent",
                {NODE: _of_nodes("ray_node_cpu_utilization")},
                top=100,
            ),
            Panel(
                "Memory used, share by node",
                "percentunit",
                {NODE: f"{_of_nodes('ray_node_mem_used')} / {_of_nodes('ray_node_mem_total')}"},
                top=1,
            ),
            Panel(
                "Network received, by node",
                "Bps",
                {NODE: _of_nodes("ray_node_network_receive_speed")},
            ),
            Panel("Network sent, by node", "Bps", {NODE: _of_nodes("ray_node_network_send_speed")}),
        ],
    )


def _gpus() -> Row:
    used, free = _of_gpus("ray_node_gram_used"), _of_gpus("ray_node_gram_available")
    return Row(
        "GPUs, measured (no data without GPUs)",
        columns=2,
        panels=[
            Panel(
                "GPU utilisation",
                "percent",
                {GPU: _of_gpus("ray_node_gpus_utilization")},
                top=100,
                empty=NO_GPU,
            ),
            Panel(
                "GPU memory used",
                "percentunit",
                {GPU: f"{used} / ({used} + {free})"},
                top=1,
                empty=NO_GPU,
            ),
            Panel(
                "GPU power", "mwatt", {GPU: _of_gpus("ray_node_gpu_power_milliwatts")}, empty=NO_GPU
            ),
            Panel(
                "GPU temperature",
                "celsius",
                {GPU: _of_gpus("ray_node_gpu_temperature_celsius")},
                empty=NO_GPU,
            ),
        ],
    )
