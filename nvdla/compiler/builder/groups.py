"""Groups of layers that one hardware operation computes."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import numpy as np

from nvdla.compiler.builder.layers import (
    ClipSettings,
    ConvSettings,
    ElementwiseSettings,
    Group,
    KernelSettings,
    Layer,
    NetworkTensor,
    ScaleSettings,
)
from nvdla.compiler.builder.network import Network
from nvdla.compiler.builder.quantization import Calibration

ACTIVATIONS = ("relu", "prelu", "clip")


# What an activation can follow within one SDP operation.
_TAKES_ACTIVATION = ("convolution", "deconvolution", "scale", "elementwise")


def group_layers(network: Network) -> list[Group]:
    """All layers but inputs, in order, in one group where the tensor between two layers is needed nowhere else."""
    groups: list[Group] = []
    done: set[str] = set()
    ends = set(network.outputs)
    for layer in network.layers:
        if layer.kind == "input" or layer.name in done:
            continue
        group = Group(layer, layer.output, [layer.name])
        if isinstance(layer.settings, KernelSettings):
            group.weights, group.bias = layer.settings.weights, layer.settings.bias
        while (follower := _only_follower(network, group.output, ends)) is not None and _absorb(group, follower):
            group.members.append(follower.name)
            group.output = follower.output
        done.update(group.members)
        groups.append(group)
    return groups


def _only_follower(network: Network, tensor: NetworkTensor, ends: Set[NetworkTensor]) -> Layer | None:
    consumers = network.consumers(tensor)
    if tensor in ends or len(consumers) != 1 or len(consumers[0].inputs) != 1:
        return None
    return consumers[0]


def _absorb(group: Group, follower: Layer) -> bool:
    """Take the follower into the group if the hardware can do it in the same operation."""
    if group.activation is not None:
        return False
    then, first = follower.settings, group.layer.settings
    if isinstance(then, ScaleSettings) and group.layer.kind in ("convolution", "deconvolution"):
        axis = 0 if group.layer.kind == "convolution" else 1
        shape = [1] * 4
        shape[axis] = -1
        if np.any(then.factors != 1):
            group.weights = group.kernels * then.factors.reshape(shape)
            group.factors = group.factors * then.factors
        group.bias = group.biases * then.factors + then.bias
        return True
    if isinstance(then, ScaleSettings) and isinstance(first, ScaleSettings):
        factors, bias = first.factors * then.factors, first.bias * then.factors + then.bias
        group.layer = replace(group.layer, settings=ScaleSettings(factors, bias))
        return True
    if follower.kind in ACTIVATIONS and group.layer.kind in _TAKES_ACTIVATION:
        # A lower limit other than zero needs a second comparison, which has no free stage.
        if isinstance(then, ClipSettings) and then.low != 0.0:
            return False
        if group.layer.kind != "convolution" and group.layer.kind != "deconvolution" and follower.kind != "relu":
            return False
        group.activation = follower
        return True
    return False


def is_sum(layer: Layer) -> bool:
    """Return whether a layer adds tensors."""
    return isinstance(layer.settings, ElementwiseSettings) and layer.settings.operation == "add"


def merged(groups: list[Group], network: Network, calibration: Calibration | None) -> list[Group]:
    """Return the groups, with each sum of such branches merged into one convolution.

    Layers with separate weight scales or precision from calibration are not merged.
    """
    given = {*calibration.weight_scales, *calibration.precisions} if calibration else set()
    makers = {group.output.name: group for group in groups}
    ends = set(network.outputs)
    gone: set[str] = set()
    for group in groups:
        branches = [makers.get(tensor.name) for tensor in group.layer.inputs]
        if not is_sum(group.layer) or None in branches:
            continue
        convolutions = [branch for branch in branches if branch is not None]
        if len({id(branch) for branch in convolutions}) == len(convolutions) and all(
            _is_free(branch, network, ends, given) for branch in convolutions
        ):
            combined = _one(convolutions, group)
            if combined is not None:
                makers[group.output.name] = combined
                gone.update(branch.output.name for branch in convolutions)
    return [makers[group.output.name] for group in groups if group.output.name not in gone]


def _is_free(branch: Group, network: Network, ends: set[NetworkTensor], given: set[str]) -> bool:
    """Return whether a convolution's result has no other consumer."""
    layer, tensor = branch.layer, branch.output
    settings = layer.settings
    if not isinstance(settings, ConvSettings) or settings.groups != 1 or settings.dilation != (1, 1):
        return False
    if branch.activation is not None or given.intersection(branch.members):
        return False
    return tensor not in ends and len(network.consumers(tensor)) == 1


def _one(branches: list[Group], total: Group) -> Group | None:
    """The convolution that replaces all of them; None where they differ in more than their kernels."""
    layers, all_settings = [branch.layer for branch in branches], [ConvSettings.of(branch.layer) for branch in branches]
    first, stride = layers[0], all_settings[0].stride
    if any(layer.inputs[0] is not first.inputs[0] for layer in layers) or any(s.stride != stride for s in all_settings):
        return None
    paddings = [settings.padding for settings in all_settings]
    top, left = (max(padding[axis] for padding in paddings) for axis in (0, 2))
    shapes = [branch.kernels.shape for branch in branches]
    rows = max(top - pads[0] + shape[2] for pads, shape in zip(paddings, shapes, strict=True))
    columns = max(left - pads[2] + shape[3] for pads, shape in zip(paddings, shapes, strict=True))
    weights = np.zeros((*shapes[0][:2], rows, columns))
    for branch, pads in zip(branches, paddings, strict=True):
        y, x = top - pads[0], left - pads[2]
        weights[:, :, y : y + branch.kernels.shape[2], x : x + branch.kernels.shape[3]] += branch.kernels
    _, height, width = first.inputs[0].shape
    _, out_height, out_width = total.output.shape
    below = (out_height - 1) * stride[0] + rows - height - top
    right = (out_width - 1) * stride[1] + columns - width - left
    if not (top < rows and left < columns and below < rows and right < columns):
        return None
    bias = np.sum([branch.biases for branch in branches], axis=0)
    padding = (top, max(below, 0), left, max(right, 0))
    settings = replace(all_settings[0], weights=weights, bias=bias, padding=padding)
    members = [name for branch in branches for name in branch.members]
    layer = Layer("+".join(members), "convolution", first.inputs, settings)
    layer.result = NetworkTensor(layer.name, total.output.shape, layer)
    return replace(
        branches[0],
        layer=layer,
        output=total.output,
        members=[*members, *total.members],
        weights=weights,
        bias=bias,
        activation=total.activation,
    )
