"""How samples of transformers become batches: by its own collators, with padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raysync.training.adapters.packages import require

Collate = Callable[[list[Any]], Any]


def collator(head: str, tokenizer: Any) -> Collate:
    """Return the collator of transformers for a head.

    Args:
        head: a name in `huggingface_task.HEADS`.
        tokenizer: that of the model, or a `padder`.
    """
    transformers = require("transformers", "huggingface", "collate_fn")
    if head in ("sequence-classification", "question-answering"):
        return transformers.DataCollatorWithPadding(tokenizer)  # type: ignore[no-any-return]
    if head == "seq2seq-lm":
        return transformers.DataCollatorForSeq2Seq(tokenizer)  # type: ignore[no-any-return]
    if head == "masked-lm" and tokenizer.mask_token is not None:
        return transformers.DataCollatorForLanguageModeling(tokenizer)  # type: ignore[no-any-return]
    padded = transformers.DataCollatorForTokenClassification(tokenizer)
    if head == "causal-lm":
        return NextTokens(padded)
    if head in ("token-classification", "masked-lm"):
        return padded  # type: ignore[no-any-return]
    return transformers.default_data_collator  # type: ignore[no-any-return]


class NextTokens:
    """Samples without `labels` are their own labels: the model shifts them. Only padding is left
    out of the loss, and not every token that is equal to it.
    """

    def __init__(self, padded: Collate) -> None:
        self._padded = padded

    def __call__(self, samples: list[Any]) -> Any:
        """Return a batch with labels."""
        return self._padded([{"labels": each["input_ids"]} | dict(each) for each in samples])


def padder(pad_token: int) -> Any:
    """Return a tokenizer with only one token: it can pad what was tokenized already."""
    transformers = require("transformers", "huggingface", "collate_fn")
    tokenizers = require("tokenizers", "huggingface", "collate_fn")
    only = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": pad_token}, "[PAD]"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=only, pad_token="[PAD]")
