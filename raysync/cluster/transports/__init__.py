"""Transports: how gradients and weights travel between the processes of a run on Ray."""
