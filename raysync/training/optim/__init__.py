"""Optimizers of flat vectors, their schedules and clipping."""
