"""What the Ray dashboard shows of a submitted job beside its command: the run that goes on in it.

The metadata of a job are what its submitter gave (`ray job submit --metadata-json`); what a driver
says when it connects (`JobConfig.metadata`) is shown of drivers that nobody submitted, and hidden
by the submitter's of those that were. Ray 2.60 has no public way to add to them later, so the entry
that the dashboard reads is changed where Ray keeps it; its own writers touch it when the job begins
and when it ends. Whatever of that a later Ray does otherwise costs the run nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import ray

KEY, NAMESPACE = "_ray_internal_job_info_{id}", b"job"
"""Ray's `JobInfoStorageClient` has it there."""


def show(facts: Mapping[str, str]) -> None:
    """Add to the metadata of the job that this process is the driver of; elsewhere, nothing
    happens.
    """
    try:
        _add(facts)
    except Exception as error:  # of Ray's inner parts, which are free to change
        logging.getLogger(__name__).debug("the job's metadata stay as they are: %r", error)


def _add(facts: Mapping[str, str]) -> None:
    from ray._private import worker
    from ray.experimental import internal_kv

    here: Any = worker.global_worker
    if not ray.is_initialized() or here.mode != ray.SCRIPT_MODE:
        return
    submission = here.core_worker.get_job_config().metadata.get("job_submission_id")
    if not submission:
        return
    key = KEY.format(id=submission).encode()
    entry = json.loads(internal_kv._internal_kv_get(key, namespace=NAMESPACE))
    if entry["status"] == "RUNNING":
        entry["metadata"] = {**(entry.get("metadata") or {}), **facts}
        internal_kv._internal_kv_put(
            key, json.dumps(entry).encode(), overwrite=True, namespace=NAMESPACE
        )
