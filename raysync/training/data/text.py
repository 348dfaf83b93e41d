"""Text as windows of characters, and a synthetic text of known entropy."""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from math import log
from pathlib import Path

import numpy as np

from raysync.errors import ConfigError
from raysync.training.data.batches import Array

ALPHABET = "abcdefghij"
PROBABILITIES = (1 / 2, 1 / 4, 1 / 8, 1 / 8)
LENGTH = 160_000

# nats per character of the synthetic text: 1.213 (1.75 bits), so perplexity 3.364 is the best
ENTROPY_RATE = -sum(p * log(p) for p in PROBABILITIES)


def followers() -> Array:
    """Return the four letters that may follow pair 10 a + b, (100, 4), the likeliest first."""
    rng = np.random.default_rng(0)
    return np.array(
        [rng.permutation(len(ALPHABET))[: len(PROBABILITIES)] for _ in range(len(ALPHABET) ** 2)]
    )


def synthetic_text(length: int = LENGTH) -> str:
    """Generate a second-order Markov chain over ten letters, always the same.

    Each pair of letters has four followers, so every state has the same entropy, which is the
    entropy rate (Shannon 1948, section 7). One letter of context says little; two say all.
    """
    table, thresholds = followers().tolist(), list(accumulate(PROBABILITIES[:-1]))
    letters, pair = [], 0
    for draw in np.random.default_rng(1).random(length).tolist():
        letter = table[pair][bisect(thresholds, draw)]
        letters.append(ALPHABET[letter])
        pair = (pair * len(ALPHABET) + letter) % len(table)
    return "".join(letters)


def read_text(file: str | Path) -> str:
    """Read a UTF-8 file, with line feeds as line ends."""
    where = f"data text: file {str(file)!r}"
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not UTF-8 text (at byte {error.start}).") from error
    # ValueError: a path with a zero byte; RuntimeError: an unknown home directory
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{where} cannot be read ({getattr(error, 'strerror', None) or error})."
        ) from error
    if not text:
        raise ConfigError(f"{where} is empty.")
    return text


def token_ids(text: str) -> tuple[Array, str]:
    """Return each character's index (characters,) int64, and the sorted vocabulary."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    known, ids = np.unique(points, return_inverse=True)
    return ids.astype(np.int64), "".join(map(chr, known))


def split(
    ids: Array, context: int, test_share: float
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Split a text (characters,) into training and test windows (x, y); the end is the test set.

    Raises:
        ConfigError: a part is shorter than one window and its next token.
    """
    end = round(len(ids) * (1 - test_share))
    parts = {"training": ids[:end], "test": ids[end:]}
    for name, part in parts.items():
        if len(part) <= context:
            raise ConfigError(
                f"data text: the {name} part has {len(part)} of the text's {len(ids)} characters; "
                f"a context of {context} needs {context + 1} in each part.\n"
                "Allowed: a longer text, a smaller context, or another test_share."
            )
    return windows(parts["training"], context), windows(parts["test"], context)


def windows(ids: Array, context: int) -> tuple[Array, Array]:
    """Return adjacent windows (N, T), and each token's next one; a shorter rest is not used."""
    count = (len(ids) - 1) // context
    used = count * context
    return ids[:used].reshape(count, context), ids[1 : used + 1].reshape(count, context)
