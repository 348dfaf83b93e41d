"""Data sets, and which samples a worker meets in which batch."""
