"""The virtual engine: one process, a virtual clock and real gradients; runs are reproducible."""
