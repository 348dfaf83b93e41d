"""What is told of a run while it goes on: callbacks of Python, and trackers.

A tracker is a callback: it turns a run into rows of metrics for a sink. TensorBoard's event file is
written by this process; the other libraries work in a process of their own, see `process`.
"""
