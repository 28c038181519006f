"""GPT of the sizes of Overdrive's built-in models, in PyTorch: the model of `scaling.py` and of
`distributed_ranks.py`."""

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, CONTEXT = 50304, 1024
# Layers, width, heads, vocabulary, context.
SIZES = {
    "gpt-125m": (12, 768, 12, VOCABULARY, CONTEXT),
    "gpt-350m": (24, 1024, 16, VOCABULARY, CONTEXT),
    "gpt-1.3b": (24, 2048, 16, VOCABULARY, CONTEXT),
    "gpt-6.7b": (32, 4096, 32, VOCABULARY, CONTEXT),
    "text-transformer": (5, 128, 4, 256, 128),
}


class Block(nn.Module):
    """One pre-norm block."""

    def __init__(self, width, heads):
        super().__init__()
        self.head_width = width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        # Columns are [heads, 3, head width], so that a rank's part of them is whole heads.
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (-1, 3, self.head_width))
        y = F.scaled_dot_product_attention(*qkv.permute(3, 0, 2, 1, 4), is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Embeddings, blocks, norm and an untied head; gives the loss."""

    def __init__(self, layers, width, heads, vocabulary, context):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x, labels):
        h = self.tokens(x) + self.positions
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def model(name):
    """The model of this name, always with the same weights."""
    torch.manual_seed(1)
    return Gpt(*SIZES[name])
