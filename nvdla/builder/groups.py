"""Which layers share one operation: factors a channel fold into what is before them, an activation follows in the
SDP."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from nvdla.builder.ir import Surface
from nvdla.builder.network import Layer, Network, NetworkTensor

ACTIVATIONS = ("relu", "prelu", "clip")
# What an activation can follow within one SDP operation.
_TAKES_ACTIVATION = ("convolution", "deconvolution", "scale", "elementwise")


@dataclass(eq=False)
class Group:
    """Layers that are lowered together. ``output`` is the tensor of the last one.

    For a convolution ``weights`` and ``bias`` hold the per-channel factors of folded layers already. ``summand``: what
    the SDP combines its result with (``combines``: "add", "maximum", "minimum", "multiply"), which is brought to units
    of ``unit``; those of the summand are ``summand_shift`` bits coarser (:mod:`nvdla.builder.lower.residual`).
    """

    layer: Layer
    output: NetworkTensor
    members: list[str] = field(default_factory=list)
    activation: Layer | None = None
    weights: np.ndarray | None = None
    bias: np.ndarray | None = None
    summand: Surface | None = None
    summand_shift: int = 0
    combines: str = "add"
    unit: float = 1.0

    @property
    def kernels(self) -> np.ndarray:
        """``weights`` of a convolution."""
        assert self.weights is not None, f"{self.name} has no weights"
        return np.asarray(self.weights, np.float64)

    @property
    def biases(self) -> np.ndarray:
        """``bias`` of a convolution."""
        assert self.bias is not None, f"{self.name} has no bias"
        return self.bias

    @property
    def name(self) -> str:
        """Names of all layers, for messages and the sidecar."""
        return "+".join(self.members)


def group_layers(network: Network) -> list[Group]:
    """All layers but inputs, in order, in one group where the tensor between two layers is needed nowhere else."""
    groups: list[Group] = []
    done: set[str] = set()
    for layer in network.layers:
        if layer.kind == "input" or layer.name in done:
            continue
        group = Group(layer, layer.output, [layer.name], weights=layer.settings.get("weights"))
        group.bias = layer.settings.get("bias")
        while (follower := _only_follower(network, group.output)) is not None and _absorb(group, follower):
            group.members.append(follower.name)
            group.output = follower.output
        done.update(group.members)
        groups.append(group)
    return groups


def _only_follower(network: Network, tensor: NetworkTensor) -> Layer | None:
    consumers = network.consumers(tensor)
    if tensor in network.outputs or len(consumers) != 1 or len(consumers[0].inputs) != 1:
        return None
    return consumers[0]


def _absorb(group: Group, follower: Layer) -> bool:
    """Take the follower into the group if the hardware can do it in the same operation."""
    if group.activation is not None:
        return False
    if follower.kind == "scale" and group.layer.kind in ("convolution", "deconvolution"):
        axis = 0 if group.layer.kind == "convolution" else 1
        shape = [1] * 4
        shape[axis] = -1
        if np.any(follower.factors != 1):
            group.weights = group.kernels * follower.factors.reshape(shape)
        group.bias = group.biases * follower.factors + follower.bias
        return True
    if follower.kind == group.layer.kind == "scale":
        first, then = group.layer, follower
        factors, bias = first.factors * then.factors, first.bias * then.factors + then.bias
        group.layer = replace(first, settings={**first.settings, "factors": factors, "bias": bias})
        return True
    if follower.kind in ACTIVATIONS and group.layer.kind in _TAKES_ACTIVATION:
        # A lower limit other than zero needs a second comparison, which has no free stage.
        if follower.kind == "clip" and follower.low != 0.0:
            return False
        if group.layer.kind != "convolution" and group.layer.kind != "deconvolution" and follower.kind != "relu":
            return False
        group.activation = follower
        return True
    return False
