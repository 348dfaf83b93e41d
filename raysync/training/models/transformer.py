"""A small language model of torch's own layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raysync.errors import ConfigError


class CharLM(nn.Module):
    """A decoder-only transformer with pre-norm, learned positions and no dropout.

    Shapes: N samples, T tokens of a sample, V size of the vocabulary, D width.
    """

    def __init__(self, length: int, vocabulary: int, width: int, layers: int, heads: int) -> None:
        """
        Args:
            length: the largest T.
            vocabulary: V.
            width: D, a multiple of heads.
        """
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        for embedding in (self.tokens, self.positions):
            # as GPT-2; with torch's 1.0 the blocks' outputs are negligible for long
            nn.init.normal_(embedding.weight, std=0.02)
        # not nn.TransformerEncoder: its layers are copies of one layer, with equal initial weights
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                heads,
                4 * width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (N, V, T) of the next token after each of tokens (N, T)."""
        length = tokens.shape[1]
        # the mask is built here: as a buffer it would travel to the server behind every gradient
        mask = nn.Transformer.generate_square_subsequent_mask(
            length, device=tokens.device
        )  # (T, T)
        hidden = self.tokens(tokens) + self.positions(
            torch.arange(length, device=tokens.device)
        )  # (N, T, D)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(hidden)  # (N, T, V)
        return logits.transpose(1, 2)


def char_lm(
    input_shape: tuple[int, ...], classes: int, *, width: int = 64, layers: int = 2, heads: int = 4
) -> nn.Module:
    """Language model: a decoder-only transformer, pre-norm, learned positions; `data: text`."""
    if len(input_shape) != 1:
        raise ConfigError(
            f"model char-lm: takes tokens (as of data: text), not samples of shape {input_shape}."
        )
    if min(width, layers, heads) < 1 or width % heads:
        raise ConfigError(
            "model char-lm: width, layers and heads must be at least 1, and width a multiple of"
            f" heads; got width {width}, layers {layers}, heads {heads}."
        )
    return CharLM(*input_shape, classes, width, layers, heads)
