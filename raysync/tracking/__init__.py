"""Callbacks and trackers of a run. A tracker turns the run into rows of metrics for a sink."""
