"""Makes batches of transformers' samples: with its own collators, and padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raysync.training.adapters.packages import require

Collate = Callable[[list[Any]], Any]


def collator(head: str, tokenizer: Any) -> Collate:
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
    """Labels samples with their own tokens; the loss leaves out padding, not all tokens like it."""

    def __init__(self, padded: Collate) -> None:
        self._padded = padded

    def __call__(self, samples: list[Any]) -> Any:
        return self._padded([{"labels": x["input_ids"]} | dict(x) for x in samples])


def padder(pad_token: int) -> Any:
    """Return a tokenizer with only one token, which can pad tokenized samples."""
    transformers = require("transformers", "huggingface", "collate_fn")
    tokenizers = require("tokenizers", "huggingface", "collate_fn")
    only = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": pad_token}, "[PAD]"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=only, pad_token="[PAD]")
