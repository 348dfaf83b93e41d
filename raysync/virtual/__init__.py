"""The virtual engine: one process, a heap of events, a virtual clock and real gradients; every run
of an experiment is the same.
"""
