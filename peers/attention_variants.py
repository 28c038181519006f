"""Attention with a score or a mask function, by `torch.nn.attention.flex_attention`, and the
gradients of any attention.

Each workload of FUNCTIONS is causal attention with one more function, or block-sparse attention.
The function may read a parameter, or an input behind q, k and v. A block mask says which tiles the
kernel skips. It is made once for each set of such inputs and is no part of a timed call: the layers
of a model share it.
"""

import importlib.util

import torch
from overdrive_peer import Unsupported

# Scores stay within this bound.
CAP = 30.0
# A window has this part of the keys.
WINDOWS = 8
# Queries and keys of a tile of block-sparse attention, and least tiles along each side.
TILE = 128
FEWEST_TILES = 8


def causal(b, h, q, k):
    return q >= k


# A workload: its score function, if it has one, and its mask function. They are made from the
# parameters by name, the inputs behind q, k and v, and the length.


def window(parameters, captured, length):
    width = length // WINDOWS

    def visible(b, h, q, k):
        return (q >= k) & (q - k < width)

    return None, visible


def documents(parameters, captured, length):
    (ids,) = captured

    def visible(b, h, q, k):
        return (q >= k) & (ids[b, q] == ids[b, k])

    return None, visible


def soft_cap(parameters, captured, length):
    def capped(score, b, h, q, k):
        return torch.tanh(score / CAP) * CAP

    return capped, causal


def alibi(parameters, captured, length):
    slopes = parameters["slopes"]

    def biased(score, b, h, q, k):
        return score + slopes[h].float() * (k - q)

    return biased, causal


def relative_bias(parameters, captured, length):
    table = parameters["table"]

    def biased(score, b, h, q, k):
        return score + table[h, q - k].float()

    return biased, causal


def block_sparse(parameters, captured, length):
    tiles = parameters["tiles"]
    side = min(max(length // FEWEST_TILES, 1), TILE)

    def visible(b, h, q, k):
        return tiles[h, q // side, k // side]

    return None, visible


FUNCTIONS = {
    "window attention": window,
    "soft-cap attention": soft_cap,
    "alibi attention": alibi,
    "document attention": documents,
    "relative-bias attention": relative_bias,
    "block-sparse attention, 50 % skipped": block_sparse,
    "block-sparse attention, 75 % skipped": block_sparse,
    "block-sparse attention, 90 % skipped": block_sparse,
}

# Attention with the gradients of q, k and v, and the workload that they are of.
GRADIENTS = {
    name + ", forward and backward": name
    for name in ("causal attention", "attention", "grouped attention", *FUNCTIONS)
}


def has_flex_attention():
    """Whether this PyTorch has it: from 2.5 on."""
    return importlib.util.find_spec("torch.nn.attention.flex_attention") is not None


def with_gradients(forward):
    """A function that gives the output of `forward`, and the gradients of q, k and v. Its last
    argument is the gradient of that output."""

    def call(q, k, v, *rest):
        *captured, cotangent = rest
        with torch.enable_grad():
            wanted = [given.detach().requires_grad_() for given in (q, k, v)]
            out = forward(*wanted, *captured)
            return (out.detach(), *torch.autograd.grad(out, wanted, cotangent))

    return call


class Flexible:
    """A workload of FUNCTIONS, compiled."""

    def __init__(self, name, parameters, mode):
        if mode != "compile":
            raise Unsupported(
                f"flex_attention in mode {mode}: expected compile, since it stores every score "
                "where it is not compiled"
            )
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        self.functions, self.parameters, self.known = FUNCTIONS[name], parameters, {}
        self.block_mask = create_block_mask
        # A graph that is not whole, or compiled too often, would run uncompiled and say nothing.
        self.attend = torch.compile(flex_attention, fullgraph=True, dynamic=False)

    def made(self, q, captured):
        """The score function and the block mask for these inputs."""
        key = tuple(id(given) for given in captured)
        if key not in self.known:
            batch, heads, length, _ = q.shape
            score, visible = self.functions(self.parameters, captured, length)
            # A mask by sequence reads an input, and one by head a table of tiles.
            batch = batch if captured else None
            heads = heads if "tiles" in self.parameters else None
            mask = self.block_mask(visible, batch, heads, length, length, device=str(q.device))
            # The inputs are kept with it, so that no other gets the id of one.
            self.known[key] = captured, score, mask
        return self.known[key][1:]

    def __call__(self, q, k, v, *captured):
        score, mask = self.made(q, captured)
        return self.attend(q, k, v, score_mod=score, block_mask=mask)
