"""Sentences of a made-up language: number words, names, and the rest, to be told apart.

A token's tag depends on the token before it as well: after a title any word is a name. So a model
must look at the context, and the best guess by the token alone is wrong for some.
"""

from typing import Any

import numpy as np
from torch.utils.data import Dataset

WORDS, NUMBERS, TITLES = range(10, 50), range(2, 8), (8, 9)
OTHER, NUMBER, NAME = range(3)


class Sentences(Dataset[dict[str, Any]]):
    """Sentences of 3 to 16 tokens, each with a tag a token."""

    def __init__(self, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.tokens = [rng.integers(2, 50, size=rng.integers(3, 17)) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        """Return the tokens, and their tags."""
        tokens = self.tokens[index].tolist()
        return {
            "input_ids": tokens,
            "attention_mask": [1] * len(tokens),
            "labels": [tag(before, token) for before, token in zip([0, *tokens], tokens)],  # noqa: B905
        }


def tag(before: int, token: int) -> int:
    """Return the tag of a token after another one."""
    if before in TITLES and token in WORDS:
        return NAME
    return NUMBER if token in NUMBERS else OTHER


def sentences() -> dict[str, Sentences]:
    """Return the training and the test set."""
    return {"train": Sentences(1200, 0), "test": Sentences(300, 1)}
