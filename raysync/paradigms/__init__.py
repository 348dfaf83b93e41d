"""The synchronisation paradigms, one file each, and how to build one by name."""

from raysync.paradigms.asp import ASP
from raysync.paradigms.balanced import Balanced
from raysync.paradigms.bsp import BSP
from raysync.paradigms.decoupled import Decoupled
from raysync.paradigms.hybrid import Hybrid
from raysync.paradigms.ksync import BackupWorkers, KBatchAsync, KBatchSync, KSync
from raysync.paradigms.lagtuner import LagTuner
from raysync.paradigms.local import StepsPerPush
from raysync.paradigms.quorum import Quorum
from raysync.paradigms.registry import PARADIGMS, PRESETS, Preset, Spec, make, rebuild
from raysync.paradigms.ringmaster import Ringmaster
from raysync.paradigms.ssp import SSP
from raysync.paradigms.syncswitch import SyncSwitch

__all__ = ["PARADIGMS", "PRESETS", "Preset", "make", "rebuild"]

DEFAULT_PARADIGM = "bsp"  # for an experiment that names none
# the paradigms that are compared if an experiment names none
COMPARED: tuple[Spec, ...] = (
    "bsp",
    "asp",
    {"name": "ssp", "staleness": 3},
    {"name": "lagtuner", "bound": "hard"},
    {"name": "lagtuner", "bound": "literal"},
)
# data-parallel training without a server
ALL_REDUCE_BASELINE: Spec = {"name": "bsp", "exchange": "all-reduce"}

PARADIGMS.update(
    {
        cls.name: cls
        for cls in (
            BSP,
            ASP,
            SSP,
            LagTuner,
            Hybrid,
            KSync,
            KBatchSync,
            KBatchAsync,
            BackupWorkers,
            Quorum,
            Ringmaster,
            Balanced,
            StepsPerPush,
            SyncSwitch,
            Decoupled,
        )
    }
)

PRESETS.update(
    {
        "hybrid-sync": Preset(
            "The hybrid parameter server's synchronous baseline: all workers, tolerance 0, a pull"
            " at every release.",
            "hybrid",
            {"k": "all", "staleness_tolerance": 0, "pull_interval": 1},
        ),
        "hybrid-async": Preset(
            "The hybrid parameter server's asynchronous baseline: one push per update, no bound.",
            "hybrid",
            {"k": 1, "staleness_tolerance": "inf", "pull_interval": 1},
        ),
        "k-async": Preset(
            "An update takes k pushes of distinct workers, however old; exactly those workers"
            " continue.",
            "hybrid",
            {"k": 2, "staleness_tolerance": "inf", "pull_interval": 1},
        ),
        "local-sgd": Preset(
            "Local SGD: workers average their weights after several SGD steps of their own. It goes"
            " with `local: {lr: ...}` and `update` as it is.",
            "local",
            {"paradigm": "bsp", "steps": 8},
        ),
        "diloco": Preset(
            "DiLoCo (arXiv 2311.08105): goes with `local: {optimizer: adamw, lr: ...}` and `update:"
            " {lr: 0.7, momentum: 0.9, nesterov: true}`.",
            "local",
            {"paradigm": "bsp", "steps": 32},
        ),
        "async-diloco": Preset(
            "DiLoCo without a barrier (arXiv 2401.09135): goes with the same settings, but an"
            " `update.lr` of about 0.07.",
            "local",
            {"paradigm": "asp", "steps": 32},
        ),
        "snoo": Preset(
            "DiLoCo with one worker (arXiv 2510.15830), the control that shows what the outer"
            " optimizer does by itself: goes with the settings of `diloco`, and `workers: [{count:"
            " 1}]`.",
            "local",
            {"paradigm": "bsp", "steps": 32},
        ),
    }
)
