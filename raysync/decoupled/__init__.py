"""Decoupled backpropagation: the stages of a network compute different batches at the same time."""
