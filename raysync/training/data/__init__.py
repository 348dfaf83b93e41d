"""Data sets, and the samples of each worker's batches."""
