"""The networks of the comparison, as lists of modules that a stage may begin with, with Penstock's names of parameters."""

import math
import sys
from collections import OrderedDict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.append(str(Path(__file__).parent.parent / 'fixtures'))

from attention import CausalSelfAttention  # noqa: E402
from networks import BasicBlock, Bottleneck, GPTBlock  # noqa: E402


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


def resnet50(channels, classes):
    modules, before = [
        ('conv1', nn.Conv2d(channels, 64, 7, 2, 3, bias=False)), ('bn1', nn.BatchNorm2d(64)), ('relu', nn.ReLU(inplace=True)),
        ('maxpool', nn.MaxPool2d(3, 2, 1))], 64
    for group, count in enumerate((3, 4, 6, 3)):
        blocks = nn.Sequential()
        for i in range(count):
            blocks.append(InPlaceBottleneck(before, 64 << group, 2 if group > 0 and i == 0 else 1))
            before = 256 << group
        modules.append((f'layer{group + 1}', blocks))
    modules += [('avgpool', nn.AdaptiveAvgPool2d(1)), ('flatten', nn.Flatten()), ('fc', nn.Linear(before, classes))]
    model = nn.Sequential(OrderedDict(modules))
    return model, [m for name, of in modules for m in (of if name.startswith('layer') else [of])]


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
    """CausalSelfAttention with the scores in place; fused, all of it is one operator."""

    fused = False

    def forward(self, x):
        n, tokens, width = x.shape
        q, k, v = (t.view(n, tokens, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, dim=-1))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1)
            scores *= 1 / math.sqrt(q.shape[-1])
            scores.masked_fill_(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), float('-inf'))
            y = scores.softmax(-1) @ v
        return self.proj(y.transpose(1, 2).flatten(2))


def gpt(classes, context, width, depth, heads, dropout, fused=False):
    if dropout:
        raise ValueError(f'dropout is {dropout}; this network has none')
    blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(depth)))
    for block in blocks:
        block.attn = InPlaceAttention(width, heads)
        block.attn.fused = fused
    embed = Embed(classes, context, width)
    model = nn.Sequential(OrderedDict(embed=embed, blocks=blocks, head=Head(width, embed.token.weight)))
    return model, [embed, *blocks, model.head]


MODELS = {'mlp': mlp, 'resnet20': resnet20, 'resnet50': resnet50, 'gpt': gpt}


def build(model, options):
    """The model and the modules that it is cut between. The options are those that `penstock models` lists; of the size of images no network knows."""
    return MODELS[model](**{name: value for name, value in options.items() if name != 'size'})


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
