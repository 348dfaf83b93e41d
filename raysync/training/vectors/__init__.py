"""A model as flat vectors: their parts and groups, and what travels of them."""
