"""A worker: weights in, gradient out."""
