"""The staleness of a push: how old the weights of its gradient are."""


def staleness(version: int, base: int) -> int:
    """Return how many updates were applied between a push's pull and its own update.

    Args:
        version: the weights that its update makes.
        base: the weights that its gradient was computed on.
    """
    return version - 1 - base
