"""The bytes of weights and of states."""
