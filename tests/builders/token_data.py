"""Sequences of tokens of unequal lengths, for models of transformers."""

import numpy as np

VOCABULARY, CLASSES = 32, 3
TINY = {"vocab_size": VOCABULARY, "dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2}
"""A DistilBERT of 4,000 parameters."""
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}


def sequences(count, seed, label):
    rng = np.random.default_rng(seed)
    samples = []
    for length in rng.integers(3, 12, size=count):
        ids = rng.integers(1, VOCABULARY, size=length).tolist()
        samples.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": label(ids)})
    return samples


def of_sequence(ids):
    return sum(ids) % CLASSES


def of_tokens(ids):
    """No label for the first token, as for one that a tokenizer adds."""
    return [-100, *(token % CLASSES for token in ids[1:])]


def data(label=of_sequence, count=48):
    return {"train": sequences(count, 1, label), "test": sequences(20, 2, label)}


def texts(count=48):
    return data(of_sequence, count)


def tagged(count=48):
    return data(of_tokens, count) | {"validation": sequences(10, 3, of_tokens)}


def plain(count=48):
    """Without labels: for a language model."""
    parts = data(of_sequence, count)
    for samples in parts.values():
        for sample in samples:
            del sample["labels"]
    return parts


def without_test():
    return {"train": sequences(8, 1, of_sequence)}


def unlabelled_test():
    return {"train": texts()["train"], "test": plain()["test"]}


def wrong_part():
    return texts() | {"tset": []}


def nothing():
    return None
