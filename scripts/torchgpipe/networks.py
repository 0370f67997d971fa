"""The benchmark's models as lists of layers, one for each layer that Penstock's partition counts, with the same operators."""

import math

import torch
from torch import nn


def mlp():
    layers = []
    for _ in range(16):
        layers += [nn.Linear(1024, 1024), nn.ReLU()]
    return nn.Sequential(*layers)


class BasicBlock(nn.Module):
    def __init__(self, in_channels, out_channels, stride):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False), nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False), nn.BatchNorm2d(out_channels))
        self.downsample = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))

    def forward(self, x):
        y = self.main(x)
        y += x if self.downsample is None else self.downsample(x)
        return y.relu_()


def resnet20():
    stem = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
    blocks, width = [], 16
    for group in range(3):
        for i in range(3):
            out = 16 << group
            blocks.append(BasicBlock(width, out, 2 if group > 0 and i == 0 else 1))
            width = out
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    return nn.Sequential(stem, *blocks, head)


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
    def __init__(self, width, classes):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes, bias=False)

    def forward(self, x):
        return self.linear(self.norm(x)).transpose(1, 2)


def gpt():
    return nn.Sequential(Embed(256, 128, 128), *(Block(128, 4) for _ in range(4)), Head(128, 256))


def data(model, batch):
    """A random input and target of a model."""
    if model == 'mlp':
        return torch.randn(batch, 1024), torch.randn(batch, 1024)
    if model == 'resnet20':
        return torch.randn(batch, 1, 28, 28), torch.randn(batch, 10)
    return torch.randint(256, (batch, 128)), torch.randn(batch, 256, 128)


MODELS = {'mlp': mlp, 'resnet20': resnet20, 'gpt': gpt}
