"""Convolutions of one tensor whose results are added: one convolution with the sum of their kernels.

A 3x3 and a 1x1 branch on the same input are a 3x3 convolution, as are two of the same size. Smaller kernels are put
into the largest where their padding says that they look.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.network import Layer, Network, NetworkTensor
from nvdla.builder.quantize import Calibration


def merged(groups: list[Group], network: Network, calibration: Calibration | None) -> list[Group]:
    """The groups, sums of such branches as one convolution each. Layers that calibration gives scales of weights or a
    precision of their own stay apart."""
    given = {*calibration.weight_scales, *calibration.precisions} if calibration else set()
    makers = {group.output.name: group for group in groups}
    gone: set[str] = set()
    for group in groups:
        branches = [makers.get(tensor.name) for tensor in group.layer.inputs]
        if group.layer.kind != "elementwise" or group.layer.operation != "add" or None in branches:
            continue
        found = [each for each in branches if each is not None]
        if len({id(each) for each in found}) == len(found) and all(_is_free(each, network, given) for each in found):
            one = _one(found, group)
            if one is not None:
                makers[group.output.name] = one
                gone.update(each.output.name for each in found)
    return [makers[group.output.name] for group in groups if group.output.name not in gone]


def _is_free(branch: Group, network: Network, given: set[str]) -> bool:
    """Whether a convolution's result is nobody else's."""
    layer, tensor = branch.layer, branch.output
    plain = layer.kind == "convolution" and layer.groups == 1 and layer.dilation == (1, 1)
    if not plain or branch.activation is not None or given.intersection(branch.members):
        return False
    return tensor not in network.outputs and len(network.consumers(tensor)) == 1


def _one(branches: list[Group], total: Group) -> Group | None:
    """The convolution that does what all of them do; None where they differ in more than their kernels."""
    layers = [each.layer for each in branches]
    first = layers[0]
    if any(each.inputs[0] is not first.inputs[0] or each.stride != first.stride for each in layers):
        return None
    top, left = (max(each.padding[axis] for each in layers) for axis in (0, 2))
    shapes = [each.kernels.shape for each in branches]
    rows = max(top - layer.padding[0] + shape[2] for layer, shape in zip(layers, shapes, strict=True))
    columns = max(left - layer.padding[2] + shape[3] for layer, shape in zip(layers, shapes, strict=True))
    weights = np.zeros((*shapes[0][:2], rows, columns))
    for branch in branches:
        y, x = top - branch.layer.padding[0], left - branch.layer.padding[2]
        weights[:, :, y : y + branch.kernels.shape[2], x : x + branch.kernels.shape[3]] += branch.kernels
    _, height, width = first.inputs[0].shape
    _, out_height, out_width = total.output.shape
    below = (out_height - 1) * first.stride[0] + rows - height - top
    right = (out_width - 1) * first.stride[1] + columns - width - left
    if not (top < rows and left < columns and below < rows and right < columns):
        return None
    bias = np.sum([each.biases for each in branches], axis=0)
    padding = (top, max(below, 0), left, max(right, 0))
    settings = {**first.settings, "weights": weights, "bias": bias, "padding": padding}
    members = [name for each in branches for name in each.members]
    layer = Layer("+".join(members), "convolution", first.inputs, settings)
    layer.made = NetworkTensor(layer.name, total.output.shape, layer)
    return replace(
        branches[0],
        layer=layer,
        output=total.output,
        members=[*members, *total.members],
        weights=weights,
        bias=bias,
        activation=total.activation,
    )
