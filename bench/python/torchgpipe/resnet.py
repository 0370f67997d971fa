"""Residual networks (He et al. 2015): ResNet-20 of blocks, and ResNet-50 as one long chain of layers, with its shortcuts as skip connections."""

from torch import nn
from torchgpipe.skip import Namespace, pop, skippable, stash


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


def resnet20(channels, classes, width):
    stem = nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
    blocks, before = [], width
    for group in range(3):
        for i in range(3):
            out = width << group
            blocks.append(BasicBlock(before, out, 2 if group > 0 and i == 0 else 1))
            before = out
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
    return nn.Sequential(stem, *blocks, head)


@skippable(stash=['identity'])
class Identity(nn.Module):
    def forward(self, x):
        yield stash('identity', x)
        return x


@skippable(pop=['identity'])
class Add(nn.Module):
    """Adds the shortcut in place, unless a partition begins here."""

    def __init__(self, downsample):
        super().__init__()
        self.downsample = downsample
        self.inplace = True

    def forward(self, x):
        shortcut = yield pop('identity')
        if self.downsample is not None:
            shortcut = self.downsample(shortcut)
        return x.add_(shortcut) if self.inplace else x + shortcut


def bottleneck(before, width, stride):
    """The layers of a block, which a partition may cut anywhere."""
    out, space, downsample = 4 * width, Namespace(), None
    if stride != 1 or before != out:
        downsample = nn.Sequential(nn.Conv2d(before, out, 1, stride, bias=False), nn.BatchNorm2d(out))
    return [
        Identity().isolate(space),
        nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        Add(downsample).isolate(space), nn.ReLU(inplace=True)]


def resnet50(channels, classes):
    layers = [nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for group, blocks in enumerate((3, 4, 6, 3)):
        for i in range(blocks):
            layers += bottleneck(before, 64 << group, 2 if group > 0 and i == 0 else 1)
            before = 256 << group
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
