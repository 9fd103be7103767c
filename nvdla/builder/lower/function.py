"""Any function of one number, by a look-up table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nvdla.builder import lut as tables
from nvdla.builder import reference
from nvdla.builder.groups import Group
from nvdla.builder.ir import Convert, Normalize, Process
from nvdla.builder.layer_types import LayerType
from nvdla.builder.lut import Lut
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer

# Where a function is wanted in fp16 and calibration says nothing about its input.
DEFAULT_RANGE = 8.0
# How far a table of halves may be off: a share of its largest value.
WORST = 1 / 64

# Where a function is looked at to see whether it is bounded, and by how much of its range it may still grow beyond.
_NEAR = np.linspace(-32, 32, 4097)
_FAR = np.array([-1e6, -1e4, -1e3, -1e2, 1e2, 1e3, 1e4, 1e6])
_SAME = 0.05


class FunctionLayer(LayerType):
    """``function`` maps a float64 array to one of the same shape."""

    kind = "function"
    zero_points = True

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """The function itself. Raises BuildError where it gives no finite number."""
        x = inputs[0]
        result = np.asarray(layer.settings["function"](x), np.float64)
        if result.shape != x.shape or not np.all(np.isfinite(result)):
            raise BuildError(f"layer {layer.name}: the function must give one finite number for each number it gets")
        return result

    def lower(self, lowering: Lowering, group: Group) -> None:
        """In the SDP's Y stage, or by the CDP with its sum and multiplication switched off.

        int8 needs no interpolation at all: LO has one entry for each value.
        """
        layer = group.layer
        form = layer.settings["function"]
        source, destination = lowering.source(layer.inputs[0]), lowering.target(group.output)
        if lowering.precision == "int8":
            table = tables.exact_int8(form, source.scale, destination.scale, source.zero, destination.zero)
        elif lowering.precision == "int16":
            table = tables.fit_integers(lambda x: form(x * source.scale) / destination.scale, -32768, 32767)
        else:
            reach = lowering.magnitude(layer.inputs[0], DEFAULT_RANGE)
            table = tables.fit_halves(form, -reach, reach)
            _check_halves(lowering, group, table, reach)
        if lowering.config.sdp_lut:
            lowering.operations.append(Process(group.name, source, destination, lut=table))
        else:
            lowering.operations.append(Normalize(group.name, source, destination, 3, table, Convert(), direct=True))

    def bounds(self, layer: Layer, largest: float) -> tuple[float, float]:
        """The least and the most of what it gives for inputs of that magnitude. Of a sigmoid, a tangent and the like
        they are finite for any: far from 0 they stay as they are."""
        points = np.linspace(-largest, largest, 1025) if np.isfinite(largest) else _NEAR
        with np.errstate(all="ignore"):
            values, beyond = (np.asarray(layer.settings["function"](x), np.float64) for x in (points, _FAR))
        if not np.all(np.isfinite(values)):
            return -np.inf, np.inf
        low, high = float(values.min()), float(values.max())
        if np.isfinite(largest):
            return low, high
        room = _SAME * (high - low)
        bounded = np.all(np.isfinite(beyond)) and beyond.min() >= low - room and beyond.max() <= high + room
        return (min(low, beyond.min()), max(high, beyond.max())) if bounded else (-np.inf, np.inf)


def _check_halves(lowering: Lowering, group: Group, table: Lut, reach: float) -> None:
    """Refuse a table that is far off, and one that is where the range of its input is not known."""
    layer = group.layer
    probe = np.linspace(-reach, reach, 513)
    largest = float(np.abs(layer.settings["function"](probe)).max())
    if table.error > WORST * largest:
        raise BuildError(
            f"layer {group.name}: its table over -{reach:g} to {reach:g} is off by {table.error:.3g} of {largest:.3g}; "
            "limit the range of its input, or build in int8, where every value has an entry of its own"
        )
    known = lowering.calibration.magnitudes if lowering.calibration else {}
    if layer.inputs[0].name in known:
        return
    for side in (-2.0 * reach, 2.0 * reach):
        real = float(layer.settings["function"](np.array([side]))[0])
        given = float(reference.look_up(table, np.array([side]))[0])
        if abs(real - given) > WORST * max(largest, abs(real)):
            raise BuildError(
                f"layer {group.name}: the range of its input is not known, and its table over -{reach:g} to {reach:g} "
                f"gives {given:.3g} at {side:g} instead of {real:.3g}; calibrate with data"
            )
