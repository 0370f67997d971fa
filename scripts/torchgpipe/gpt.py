"""A decoder over bytes (Radford et al. 2019)."""

import math

import torch
from torch import nn


class Embed(nn.Module):
    def __init__(self, tokens, context, width):
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.randn(context, width))

    def forward(self, x):
        return self.token(x) + self.position[:x.shape[1]]


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        n, tokens, width = x.shape
        q, k, v = (t.view(n, tokens, self.heads, width // self.heads).transpose(1, 2) for t in self.qkv(x).split(width, dim=-1))
        scores = q @ k.transpose(-2, -1)
        scores *= 1 / math.sqrt(width // self.heads)
        scores.masked_fill_(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), float('-inf'))
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, tokens, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(approximate='tanh'), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.perceptron(x)


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
    return nn.Sequential(Embed(classes, context, width), *(Block(width, heads) for _ in range(depth)), Head(width, classes))
