"""A module as flat vectors: their parts, groups and buffers, and how they travel."""
