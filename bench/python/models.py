"""The benchmark's networks in PyTorch.

Each comes as a model and as a list of modules, which stages and checkpoints may be cut between.
Where PyTorch gets weights from a file the parameters have Penstock's names.
"""

import math
import sys
from collections import OrderedDict
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.append(str(Path(__file__).parents[2] / 'scripts' / 'fixtures'))

from attention import CausalSelfAttention  # noqa: E402
from networks import BasicBlock, Bottleneck, GPTBlock  # noqa: E402

import serve  # noqa: E402


def mlp(width, depth):
    model = nn.Sequential()
    for i in range(depth):
        model.add_module(f'fc{i}', nn.Linear(width, width))
        model.add_module(f'relu{i}', nn.ReLU())
    return model, list(model)


class InPlaceBlock(BasicBlock):
    """BasicBlock with as many operators in place as autograd permits."""

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu_()))
        y += x if self.downsample is None else self.downsample(x)
        return y.relu_()


class Stem(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        return self.bn(self.conv(x)).relu_()


class Classifier(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet20(channels, classes, width):
    groups, before = [('stem', Stem(channels, width))], width
    for group in range(3):
        blocks = nn.Sequential()
        for i in range(3):
            blocks.append(InPlaceBlock(before, width << group, 2 if group > 0 and i == 0 else 1))
            before = width << group
        groups.append((f'layer{group + 1}', blocks))
    groups.append(('head', Classifier(before, classes)))
    model = nn.Sequential(OrderedDict(groups))
    return model, [model.stem, *model.layer1, *model.layer2, *model.layer3, model.head]


class InPlaceBottleneck(Bottleneck):
    """Bottleneck with as many operators in place as autograd permits."""

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu_())).relu_()
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return y.relu_()


def resnet(counts, channels, classes):
    modules, before = [
        ('conv1', nn.Conv2d(channels, 64, 7, 2, 3, bias=False)), ('bn1', nn.BatchNorm2d(64)), ('relu', nn.ReLU(inplace=True)),
        ('maxpool', nn.MaxPool2d(3, 2, 1))], 64
    for group, count in enumerate(counts):
        blocks = nn.Sequential()
        for i in range(count):
            blocks.append(InPlaceBottleneck(before, 64 << group, 2 if group > 0 and i == 0 else 1))
            before = 256 << group
        modules.append((f'layer{group + 1}', blocks))
    modules += [('avgpool', nn.AdaptiveAvgPool2d(1)), ('flatten', nn.Flatten()), ('fc', nn.Linear(before, classes))]
    model = nn.Sequential(OrderedDict(modules))
    stem = nn.Sequential(model.conv1, model.bn1, model.relu)  # a checkpoint before relu would be lost
    blocks = [block for group in range(1, 5) for block in getattr(model, f'layer{group}')]
    return model, [stem, model.maxpool, *blocks, model.avgpool, model.flatten, model.fc]


class Embed(nn.Module):
    def __init__(self, tokens, context, width):
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.empty(context, width))

    def forward(self, x):
        return self.token(x) + self.position[:x.shape[1]]


class Head(nn.Module):
    def __init__(self, width, weight):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, weight.shape[0], bias=False)
        self.linear.weight = weight

    def forward(self, x):
        return self.linear(self.norm(x))  # the loss transposes it: PyTorch 2.6 fails if the output of a pipeline is a view


class InPlaceAttention(CausalSelfAttention):
    """CausalSelfAttention with the scores in place."""

    def forward(self, x):
        n, tokens, width = x.shape
        q, k, v = (t.view(n, tokens, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, dim=-1))
        scores = q @ k.transpose(-2, -1)
        scores *= 1 / math.sqrt(q.shape[-1])
        future = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        y = scores.masked_fill_(future, float('-inf')).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).flatten(2))


def gpt(classes, context, width, depth, heads, dropout):
    if dropout:
        raise ValueError(f'dropout is {dropout}; this network has none')
    blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(depth)))
    for block in blocks:
        block.attn = InPlaceAttention(width, heads)
    embed = Embed(classes, context, width)
    model = nn.Sequential(OrderedDict(embed=embed, blocks=blocks, head=Head(width, embed.token.weight)))
    return model, [embed, *blocks, model.head]


def vgg(counts, classes, channels, width, dropout):
    # A module never begins with an operator in place: it would overwrite a checkpoint.
    layers, before = [], channels
    for group, count in enumerate(counts):
        out = min(64 << group, 512)
        for _ in range(count):
            layers.append(nn.Sequential(nn.Conv2d(before, out, 3, padding=1), nn.ReLU(inplace=True)))
            before = out
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten(1)]
    for i, o in ((before * 49, width), (width, width)):
        layers.append(nn.Sequential(nn.Linear(i, o), nn.ReLU(inplace=True), nn.Dropout(dropout)))
    layers.append(nn.Linear(width, classes))
    return nn.Sequential(*layers), layers


class Down(nn.Module):
    """Keeps its input as a skip connection and halves the image. State is (x, *skips)."""

    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(2)

    def forward(self, state):
        x, *skips = state
        return self.pool(x), *skips, x


class Up(nn.Module):
    """Doubles the image and joins the last skip connection."""

    def forward(self, state):
        x, *skips, skip = state
        return torch.cat((F.interpolate(x, scale_factor=2), skip), 1), *skips


class OnFirst(nn.Module):
    """A module for the first tensor of the state."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, state):
        x, *skips = state
        return self.module(x), *skips


class Begin(nn.Module):
    def forward(self, x):
        return (x,)


class End(nn.Module):
    """The last convolution, without the state."""

    def __init__(self, channels, classes):
        super().__init__()
        self.conv = nn.Conv2d(channels, classes, 1, bias=False)

    def forward(self, state):
        return self.conv(state[0])


def convolutions(count, before, hidden, out, dropout):
    """Of several convolutions only the last has out channels. The norm is one of each channel."""
    modules = []
    for i in range(count):
        to = out if i == count - 1 else hidden
        modules.append(OnFirst(nn.Sequential(
            nn.Conv2d(before, to, 3, padding=1, bias=False), nn.Dropout2d(dropout),
            nn.GroupNorm(to, to, affine=False), nn.LeakyReLU(inplace=True))))
        before = to
    return modules


def unet(B, C, depth, channels, classes, dropout):
    modules, before = [Begin()], channels
    for level in range(depth):
        out = C << level
        modules += [*convolutions(B, before, out, out, dropout), Down()]
        before = out
    modules += convolutions(B, before, 2 * before, before, dropout)
    for level in reversed(range(depth)):
        out = (C << level) // 2
        modules += [Up(), *convolutions(B, 2 * C << level, out, out, dropout)]
    modules.append(End(C // 2, classes))
    return nn.Sequential(*modules), modules


MODELS = {
    'mlp': mlp, 'small': mlp, 'resnet20': resnet20, 'gpt': gpt, 'unet': unet,
    'resnet50': partial(resnet, (3, 4, 6, 3)), 'resnet101': partial(resnet, (3, 4, 23, 3)),
    'vgg11': partial(vgg, (1, 1, 2, 2, 2)), 'vgg16': partial(vgg, (2, 2, 3, 3, 3)),
}


def build(model, options):
    """The model and its modules. The options are those that `penstock models` lists.

    No network knows the size of its images.
    """
    return MODELS[model](**{name: value for name, value in options.items() if name != 'size'})


def initialised(spec):
    """The model of a request, with as many parameters as Penstock's, and its modules."""
    model, modules = build(spec['model'], spec['options'])
    serve.check(spec, sum(p.numel() for p in model.parameters()))
    if spec['model'] == 'gpt':
        nn.init.normal_(model.embed.position)
    return model, modules


def loss(model):
    """The mean squared error to a target with the classes before the tokens."""
    return (lambda y, t: F.mse_loss(y.transpose(1, 2), t)) if model == 'gpt' else F.mse_loss


def load(model, tensors):
    """Gives every parameter and buffer the tensor of its name. Of a parameter that modules share the file has one name."""
    state = model.state_dict()
    for name, t in tensors.items():
        state[name].copy_(t)
    missing = {name for name, _ in model.named_parameters()} - set(tensors)
    if missing:
        raise ValueError(f'the file lacks {sorted(missing)}')
