"""AmoebaNet-D (Real et al. 2018) as torchgpipe's benchmarks have it: a normal cell gives states 0, 3, 4 and 6, and what the paper calls max_pool_3x3 is an average."""

import torch
from torch import nn


def convolve(before, *kernels):
    """ReLU, convolution and BatchNorm for each (out, size, stride). The first ReLU keeps its input, which others read."""
    layers = []
    for i, (out, size, stride) in enumerate(kernels):
        padding = tuple(n // 2 for n in size)
        layers += [nn.ReLU(inplace=i > 0), nn.Conv2d(before, out, size, stride, padding, bias=False), nn.BatchNorm2d(out)]
        before = out
    return nn.Sequential(*layers)


def same(channels, stride):
    return nn.Identity()


def avg_pool_3x3(channels, stride):
    return nn.AvgPool2d(3, stride, 1, count_include_pad=False)


def max_pool_2x2(channels, stride):
    return nn.MaxPool2d(2, stride)


def conv_1x1(channels, stride):
    return convolve(channels, (channels, (1, 1), stride))


def conv_3x3(channels, stride):
    quarter = channels // 4
    return convolve(channels, (quarter, (1, 1), 1), (quarter, (3, 3), stride), (channels, (1, 1), 1))


def conv_1x7_7x1(channels, stride):
    quarter = channels // 4
    return convolve(channels, (quarter, (1, 1), 1), (quarter, (1, 7), (1, stride)), (quarter, (7, 1), (stride, 1)), (channels, (1, 1), 1))


# Pairs of (state, operation), a pair for each node, and the states that are the cell's output.
NORMAL = [((1, conv_1x1), (1, avg_pool_3x3)), ((1, same), (0, conv_1x7_7x1)), ((0, conv_1x1), (0, conv_1x7_7x1)),
          ((2, avg_pool_3x3), (2, same)), ((1, avg_pool_3x3), (5, conv_1x1))], (0, 3, 4, 6)
REDUCTION = [((0, max_pool_2x2), (0, avg_pool_3x3)), ((2, same), (1, conv_3x3)), ((2, conv_1x7_7x1), (2, avg_pool_3x3)),
             ((3, same), (1, max_pool_2x2)), ((2, avg_pool_3x3), (3, conv_1x1))], (4, 5, 6)


class FactorizedReduce(nn.Module):
    """Halves a state: half of the channels come from the pixels of even coordinates, half from those of odd ones."""

    def __init__(self, before, out):
        super().__init__()
        self.even = nn.Conv2d(before, out // 2, 1, 2, bias=False)
        self.odd = nn.Conv2d(before, out - out // 2, 1, 2, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x):
        x = x.relu()
        return self.norm(torch.cat((self.even(x), self.odd(x[:, :, 1:, 1:])), 1))


class Cell(nn.Module):
    """(last, before) to (next, last); a tensor stands for both."""

    def __init__(self, design, before, last, channels, halved):
        super().__init__()
        nodes, self.output = design
        self.last, self.before = conv_1x1_to(last, channels), nn.Identity()
        if halved:
            self.before = FactorizedReduce(before, channels)
        elif before != channels:
            self.before = conv_1x1_to(before, channels)
        self.states = [(a, b) for (a, _), (b, _) in nodes]
        stride = 2 if design is REDUCTION else 1
        self.operations = nn.ModuleList(f(channels, stride if state < 2 else 1) for node in nodes for state, f in node)

    def forward(self, xs):
        last, before = xs if isinstance(xs, tuple) else (xs, xs)
        states = [self.last(last), self.before(before)]
        for i, (a, b) in enumerate(self.states):
            states.append(self.operations[2 * i](states[a]) + self.operations[2 * i + 1](states[b]))
        return torch.cat([states[i] for i in self.output], 1), last


def conv_1x1_to(before, out):
    return convolve(before, (out, (1, 1), 1))


class Classify(nn.Module):
    def __init__(self, before, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))

    def forward(self, xs):
        return self.layers(xs[0])


class Stem(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(), nn.Conv2d(channels, out, 3, 2, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return self.layers(x)


def amoebanetd(L, D, channels, classes):
    """L normal cells in three groups, D filters. Images are multiples of 32 pixels."""
    width = D // 4
    layers, before, last, halved = [Stem(channels, width)], width, width, False
    for design in [REDUCTION] * 2 + ([NORMAL] * (L // 3) + [REDUCTION]) * 2 + [NORMAL] * (L // 3):
        if design is REDUCTION:
            width *= 2
        layers.append(Cell(design, before, last, width, halved))
        before, last, halved = last, width * len(design[1]), design is REDUCTION
    return nn.Sequential(*layers, Classify(last, classes))
