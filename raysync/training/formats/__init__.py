"""States and weights as bytes, in safetensors; what is read runs no code."""
