"""A decoder over bytes (Radford et al. 2019)."""

import math

import torch
from torch import nn
from torchgpipe.skip import Namespace, pop, skippable, stash


class Embed(nn.Module):
    def __init__(self, tokens, context, width):
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.randn(context, width))

    def forward(self, x):
        return self.token(x) + self.position[:x.shape[1]]


class Heads(nn.Module):
    """Queries, keys and values of each head."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, qkv):
        n, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        q, k, v = (t.view(n, tokens, self.heads, width // self.heads).transpose(1, 2) for t in qkv.split(width, dim=-1))
        return q, k.transpose(-2, -1), v


class Weights(nn.Module):
    def forward(self, qkv):
        q, k, v = qkv
        scores = q @ k
        scores *= 1 / math.sqrt(q.shape[-1])
        scores.masked_fill_(torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1), float('-inf'))
        return scores.softmax(-1), v


class Values(nn.Module):
    def forward(self, both):
        weights, v = both
        return (weights @ v).transpose(1, 2).flatten(2)


@skippable(stash=['residual'])
class Stash(nn.Module):
    def forward(self, x):
        yield stash('residual', x)
        return x


@skippable(pop=['residual'])
class Add(nn.Module):
    """Adds in place, unless a partition begins here."""

    def __init__(self):
        super().__init__()
        self.inplace = True

    def forward(self, x):
        residual = yield pop('residual')
        return x.add_(residual) if self.inplace else x + residual


def block(width, heads):
    """The layers of a block, which a partition may cut anywhere."""
    attention = [nn.Linear(width, 3 * width), Heads(heads), Weights(), Values(), nn.Linear(width, width)]
    perceptron = [nn.Linear(width, 4 * width), nn.GELU(approximate='tanh'), nn.Linear(4 * width, width)]
    layers = []
    for part in attention, perceptron:
        space = Namespace()
        layers += [Stash().isolate(space), nn.LayerNorm(width), *part, Add().isolate(space)]
    return layers


class Head(nn.Module):
    """Has a weight of its own, where Penstock's has the embedding's: torchgpipe refuses parameters that layers share. Either computes the same."""

    def __init__(self, width, classes):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes, bias=False)

    def forward(self, x):
        return self.linear(self.norm(x)).transpose(1, 2)


def gpt(classes, context, width, depth, heads, dropout):
    if dropout:
        raise ValueError(f'dropout is {dropout}; this network has none')
    layers = [Embed(classes, context, width)]
    for _ in range(depth):
        layers += block(width, heads)
    return nn.Sequential(*layers, Head(width, classes))
