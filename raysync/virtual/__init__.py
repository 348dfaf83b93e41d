"""The virtual engine: one process, a heap of events, a virtual clock, real gradients; the same on
every run.
"""
