"""Where the time of a run goes: what its bottleneck is, and what the next best change would give.

Both are found by experiment, not by rules of thumb: the run is repeated in virtual time, without
gradients, with one thing changed. The *bottleneck* is the limit without which the work takes the
least time; a *remedy* is something that one can do about it. `results.sentences` puts both into
words.
"""

from raysync.bottlenecks.diagnosis import Diagnosis, diagnose
from raysync.bottlenecks.setting import Setting

__all__ = ["Diagnosis", "Setting", "diagnose"]
