"""Models, data, gradients, updates and evaluation: torch, without Ray."""
