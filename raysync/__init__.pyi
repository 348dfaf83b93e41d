# The public names of raysync: authors of paradigms import everything from here.

from .config.experiment import Experiment as Experiment
from .core.capability import Capability as Capability, Demand as Demand
from .core.decisions import (
    Apply as Apply,
    Decision as Decision,
    Drop as Drop,
    Hold as Hold,
    Note as Note,
    Push as Push,
    Release as Release,
    Restore as Restore,
    SetTimer as SetTimer,
    Suspend as Suspend,
    Switch as Switch,
)
from .core.events import (
    Event as Event,
    Joined as Joined,
    Left as Left,
    Pushed as Pushed,
    TimerFired as TimerFired,
)
from .core.journal import Evaluation as Evaluation
from .core.machine import Machine as Machine
from .core.paradigm import Paradigm as Paradigm
from .core.roster import Member as Member, Roster as Roster
from .core.telemetry import Telemetry as Telemetry
from .errors import (
    ConfigError as ConfigError,
    IllegalDecision as IllegalDecision,
    ProtocolViolation as ProtocolViolation,
    RaysyncError as RaysyncError,
    RunFailed as RunFailed,
)
from .randomness import draw as draw
from .record.measures import Measures as Measures
from .record.reader import RunRecord as RunRecord, load as load
from .record.sweeps import SweepRecord as SweepRecord, load_sweep as load_sweep
from .running.resuming import resume as resume
from .running.run import run as run
from .tracking.callback import Callback as Callback, RunStart as RunStart
from .training.data.data_set import (
    DataSet as DataSet,
    LazyDataSet as LazyDataSet,
    data_set as data_set,
)
from .training.task import Average as Average, Task as Task
