"""What emulates a cluster, with one meaning on both engines: step times, faults."""
