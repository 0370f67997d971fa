"""The benchmark's models as lists of layers, one for each layer that Penstock's partition counts, with the same operators and options."""

import torch
from torch import nn

import gpt
import resnet
import unet


def mlp(width, depth):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)


MODELS = {'mlp': mlp, 'resnet20': resnet.resnet20, 'resnet50': resnet.resnet50, 'unet': unet.unet, 'gpt': gpt.gpt}


def build(model, options):
    """The options are those that `penstock models` lists; of the size of images no network knows."""
    return MODELS[model](**{name: value for name, value in options.items() if name != 'size'})


def parameters(model):
    """How many trainable numbers each layer has."""
    return [sum(p.numel() for p in layer.parameters()) for layer in model]


def cuttable(model, balance):
    """Takes the in-place operations away from where partitions begin: there they would overwrite a leaf of autograd's."""
    first = 0
    for layers in balance:
        layer = getattr(model[first], 'module', model[first])  # of a skippable
        if getattr(layer, 'inplace', False):
            layer.inplace = False
        first += layers
    return model

