"""What a run holds does not grow with its pushes: segments, files and memory, shared too."""

from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WAYS = {
    "asp": {"paradigm": "asp"},
    "bsp": {"paradigm": "bsp"},
    "local steps, int8": {
        "paradigm": {"name": "local", "paradigm": "asp", "steps": 2},
        "local": {"lr": 0.05},
        "cluster": {"wire": "int8"},
    },
}
PUSHES, LAST = 5000, 1000
WORKERS, BATCH_SIZE = 2, 2
LOG_BYTES = 2**24  # of gradients of 76 KiB: full after 4 % of the pushes
LOOKS = 4


@dataclass(frozen=True)
class Held:
    """What the actors hold at a moment."""

    segments: int
    files: int
    pss_mib: float


def held():
    """Ask the system about the actors below this process."""
    segments, files, pss = set(), 0, 0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):
            if not process.name().startswith("ray::"):
                continue
            pss += process.memory_full_info().pss
            for file in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):
                    files += 1
                    if "memfd:raysync" in str(file.readlink()):
                        segments.add(file.stat().st_ino)
    return Held(len(segments), files, pss / 2**20)


@pytest.mark.parametrize("transport", ["shared-memory", "object-ref"])
@pytest.mark.parametrize("way", WAYS)
def test_the_last_pushes_add_nothing(way, transport, run):
    settings = dict(WAYS[way])
    cluster = {"transport": transport, "server_log_bytes": LOG_BYTES, **settings.pop("cluster", {})}
    steps = 2 if "local" in settings else 1
    seen = []
    record = run(
        model={"name": "mlp", "hidden": [256]},
        batch_size=BATCH_SIZE,
        workers=[{"count": WORKERS}],
        workload={"samples": PUSHES * BATCH_SIZE * steps},
        evaluation={"marks": 2},
        cluster=cluster,
        watch=lambda measures: seen.append((measures.progress, held())),
        **settings,
    )
    assert record.summary["pushes"] >= PUSHES - WORKERS
    # A file may be open for a moment only, so a few looks count, and the least of them.
    before = least([each for progress, each in seen if progress <= 1 - LAST / PUSHES][-LOOKS:])
    after = least([each for progress, each in seen if progress > 1 - LAST / PUSHES][-LOOKS:])
    print(f"{way}, {transport}: {before}, then {after}")
    assert after.segments <= before.segments
    assert after.files <= before.files
    assert after.pss_mib <= 1.01 * before.pss_mib
    assert before.segments or transport == "object-ref", "they are found"


def least(looks):
    assert looks, "too few reports of a run"
    return Held(*map(min, zip(*map(astuple, looks), strict=True)))
