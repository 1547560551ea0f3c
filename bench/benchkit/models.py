"""The models that are measured and are no recipe of the suite."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["LanguageLSTM", "Transformer", "make_mlp"]


class Transformer(nn.Module):
    """Predict the next token with a small GPT: pre-norm blocks, causal attention, tied head.

    Args:
        vocabulary_size: Number of tokens.
        width: Number of features of a token.
        num_blocks: Number of blocks.
        num_heads: Number of attention heads; divides ``width``.
        num_positions: Longest sequence.
    """

    def __init__(
        self,
        vocabulary_size: int,
        width: int,
        *,
        num_blocks: int = 4,
        num_heads: int = 4,
        num_positions: int = 128,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Embedding(num_positions, width)
        self.blocks = nn.Sequential(*(_Block(width, num_heads) for _ in range(num_blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary_size, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token.

        Args:
            tokens: Integer tensor of shape ``(batch, time)``.

        Returns:
            Logits of shape ``(batch, time, vocabulary_size)``.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(places))))


class LanguageLSTM(nn.Module):
    """Predict the next token with two LSTM layers.

    Args:
        vocabulary_size: Number of tokens.
        width: Number of features of a token and of each layer.
    """

    def __init__(self, vocabulary_size: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.layers = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token.

        Args:
            tokens: Integer tensor of shape ``(batch, time)``.

        Returns:
            Logits of shape ``(batch, time, vocabulary_size)``.
        """
        hidden, _ = self.layers(self.tokens(tokens))
        return self.head(hidden)


def make_mlp(widths: Sequence[int]) -> nn.Sequential:
    """Build a stack of linear layers with ReLU between them.

    Args:
        widths: Number of features of the input, of each hidden layer and of the output.

    Returns:
        The model.

    Example:
        >>> make_mlp((7, 5, 3))(torch.zeros(2, 7)).shape
        torch.Size([2, 3])
    """
    layers: list[nn.Module] = []
    for num_inputs, num_outputs in pairwise(widths):
        layers += [nn.Linear(num_inputs, num_outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class _Block(nn.Module):
    """Attend, then transform each token, both added to their input."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_output = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        heads = self.qkv(self.attention_norm(hidden)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.attention_output(mixed.transpose(1, 2).flatten(2))
        return hidden + self.mlp(hidden)
