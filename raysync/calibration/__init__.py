"""Measure a cluster and write a profile for predictions on the virtual engine."""

from raysync.calibration.cluster import Measured, MeasuredGroup, calibrate
from raysync.calibration.links import Links
from raysync.calibration.profile import profile
from raysync.calibration.sharing import Sharing
from raysync.calibration.step_times import StepTimes
from raysync.calibration.updates import UpdateTimes
