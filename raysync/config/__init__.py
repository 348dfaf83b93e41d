"""The settings of an experiment file; each field's description has its meaning and unit.

`load` reads YAML, applies a cluster profile and `--set` overrides, and validates; every mistake is
a `ConfigError` with the path of the setting.
"""

from __future__ import annotations

from raysync.config.base import Named, ParadigmChoice
from raysync.config.checkpoint_settings import Checkpointing
from raysync.config.cluster_settings import Cluster, Restarts
from raysync.config.experiment import STANDARD_COMPARISON, Experiment
from raysync.config.faults import Crash, Drift, Fault, Kill, Latency, SlowDown, SpeedDrift
from raysync.config.files import common_of, load, parse, row_of, validate
from raysync.config.network import Link, Network, Node, Regions
from raysync.config.profiles import profiles
from raysync.config.stop import Stop
from raysync.config.sweep import Distribution, Published, Sweep
from raysync.config.switch_search import Known, SwitchSearch
from raysync.config.target import Target
from raysync.config.update import (
    Data,
    DelayCompensation,
    EvaluationPlan,
    Local,
    MomentumRamp,
    ParameterGroup,
    Phase,
    Schedule,
    Update,
    Workload,
)
from raysync.config.workers import START_DEADLINE_S, Jitter, WorkerGroup
