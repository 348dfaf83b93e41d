"""Measure a cluster for a profile, with which the virtual engine predicts what it would do.

step_times    what each group of workers takes for batches of several sizes, in its own place
links         what lies between a group's node and the server, and how long a worker takes to start
sharing       how workers share the link of the server
updates       what an update takes the server
profile       the file of all that
"""

from raysync.calibration.cluster import Measured, MeasuredGroup, calibrate
from raysync.calibration.links import Links
from raysync.calibration.profile import profile
from raysync.calibration.sharing import Sharing
from raysync.calibration.step_times import StepTimes
from raysync.calibration.updates import UpdateTimes

__all__ = [
    "Links",
    "Measured",
    "MeasuredGroup",
    "Sharing",
    "StepTimes",
    "UpdateTimes",
    "calibrate",
    "profile",
]
