"""The U-Net (Ronneberger et al. 2015) of torchgpipe's benchmarks, at sizes of one's own: each convolution, dropout, norm and activation is a layer."""

import torch
from torch import nn
from torchgpipe.skip import Namespace, pop, skippable, stash


@skippable(stash=['skip'])
class Stash(nn.Module):
    def forward(self, x):
        yield stash('skip', x)
        return x


@skippable(pop=['skip'])
class Concat(nn.Module):
    def forward(self, x):
        skip = yield pop('skip')
        return torch.cat((x, skip), 1)


def normed(norm, channels):
    """A norm of each channel and sample, and its activation. The activation of an instance norm makes a new tensor: in place on its result, which is a view, it would take longer. A group norm with a
    group for each channel is the same function by another operator, the one that Penstock runs, with the activation in place as there."""
    if norm == 'instance_norm':
        return [nn.InstanceNorm2d(channels), nn.LeakyReLU()]
    if norm == 'group_norm':
        return [nn.GroupNorm(channels, channels, affine=False), nn.LeakyReLU(inplace=True)]
    raise ValueError(f'norm {norm!r}: want instance_norm or group_norm')


def convolutions(count, channels, hidden, out, dropout, norm):
    """Of several, only the last has out channels."""
    layers = []
    for i in range(count):
        to = out if i == count - 1 else hidden
        layers += [nn.Conv2d(channels, to, 3, padding=1, bias=False), nn.Dropout2d(dropout)] + normed(norm, to)
        channels = to
    return layers


def unet(B, C, depth, channels, classes, dropout, norm='instance_norm'):
    """B convolutions a level, C channels in the first. Images are multiples of 2^depth pixels."""
    spaces = [Namespace() for _ in range(depth)]
    layers = []
    for level in range(depth):
        out = C << level
        layers += convolutions(B, channels, out, out, dropout, norm) + [Stash().isolate(spaces[level]), nn.MaxPool2d(2)]
        channels = out
    layers += convolutions(B, channels, 2 * channels, channels, dropout, norm)
    for level in reversed(range(depth)):
        out = (C << level) // 2
        layers += [nn.Upsample(scale_factor=2), Concat().isolate(spaces[level])] + convolutions(B, 2 * C << level, out, out, dropout, norm)
    return nn.Sequential(*layers, nn.Conv2d(C // 2, classes, 1, bias=False))
