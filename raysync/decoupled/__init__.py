"""Decoupled backpropagation: a network cut into modules that compute at the same time, on different
batches.
"""
