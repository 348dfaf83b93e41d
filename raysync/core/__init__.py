"""The pure core: events go in, decisions come out; no clock, no I/O, no chance, no user code."""
