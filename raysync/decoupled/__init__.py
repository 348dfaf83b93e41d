"""Decoupled backpropagation: a network is cut into stages that compute at the same time, on
different batches.
"""
