"""A server: gradients in, weights out."""
