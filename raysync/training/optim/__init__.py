"""Optimizers of a flat vector, learning rates, and clipping."""
