"""The emulation of a cluster, the same for both engines: step times and faults."""
