"""Write the measurements as a cluster profile."""

from __future__ import annotations

from typing import Any

from raysync.calibration.cluster import Measured, MeasuredGroup
from raysync.calibration.links import Links, best_of
from raysync.config import Experiment, Jitter, WorkerGroup
from raysync.config.yaml_reading import write_yaml


def profile(experiment: Experiment, measured: Measured, about: str) -> str:
    """Return a profile's text: the experiment's groups, as measured, and the network.

    A group's own settings stay. The network has the best link; a group with a slower one gets the
    difference as a link of its own.
    """
    best = best_of([group.links for group in measured.groups.values()])
    link = {"latency_s": best.latency_s, "bandwidth_bytes_per_s": best.bandwidth_bytes_per_s}
    network: dict[str, Any] = {
        "link": {name: _rounded(value) for name, value in link.items() if value is not None},
        "push_s": _rounded(measured.push_s),
        "update_s": _rounded(measured.updates.update_s),
        "update_bytes_per_s": _rounded(measured.updates.bytes_per_s),
    }
    if (sharing := measured.sharing) is not None:
        network["server_bandwidth_bytes_per_s"] = _rounded(sharing.bytes_per_s)
        network["share_sigma"] = _rounded(sharing.sigma)
    workers = [_settings(group, measured.groups[group.name], best) for group in experiment.workers]
    return write_yaml({"about": about, "workers": workers, "network": network}, width=120)


def _settings(group: WorkerGroup, measured: MeasuredGroup, best: Links) -> dict[str, Any]:
    settings = group.model_dump(mode="json", exclude_defaults=True, exclude={"name", "count"})
    emulated: dict[str, Any] = {"start_s": _rounded(measured.start_s)}
    if measured.steps is not None:
        steps = measured.steps
        emulated["per_sample_s"] = _rounded(max(steps.per_sample_s, 1e-12))  # it must be above 0
        for name, value in (("fixed_s", steps.fixed_s), ("floor_s", steps.floor_s)):
            if value:
                emulated[name] = _rounded(value)
        if steps.max_batch is not None:
            emulated["max_batch"] = steps.max_batch
        if group.jitter == Jitter() and steps.sigma:
            emulated["jitter"] = {"distribution": "lognormal", "sigma": _rounded(steps.sigma)}
    if link := _beyond(measured.links, best):
        emulated["link"] = link
    return {"name": group.name, "count": group.count, **emulated, **settings}


def _beyond(links: Links, best: Links) -> dict[str, float]:
    """Return the extra latency and the lower bandwidth of a link, compared with the best."""
    beyond = {}
    if links.has_more_latency(best):
        beyond["latency_s"] = _rounded(links.latency_s - best.latency_s)
    if links.bandwidth_bytes_per_s is not None and links.has_less_bandwidth(best):
        beyond["bandwidth_bytes_per_s"] = _rounded(links.bandwidth_bytes_per_s)
    return beyond


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")  # a measurement is no more precise
