"""What the model takes of an operation: a shape for each unit, and the chain of units that work together."""

from __future__ import annotations

from dataclasses import dataclass

from nvdla.analysis.cycles.constants import CycleConstants
from nvdla.rounding import ceil_div


@dataclass(frozen=True)
class ConvolutionShape:
    """A convolution as its registers describe it.

    ``kernel_*``: width, height and channels of a kernel as CSC takes them; ``data_bytes`` and ``weight_bytes`` are what
    CDMA fetches (0 for what is re-used); ``slices``: lines of the input cube that the buffer takes one by one;
    ``entries_per_slice``: their room in the buffer, in entries of a bank; ``data_atoms``: the channel atoms of a pixel;
    ``by_line``: stripes end with the output line (image input); ``share``: part of the positions that one pass over a
    tap serves (Winograd: 1/4).
    """

    out_width: int
    out_height: int
    kernels: int
    kernel_width: int
    kernel_height: int
    kernel_channels: int
    data_bytes: int
    weight_bytes: int
    weight_banks: int
    data_atoms: int
    data_banks: int = 1
    slices: int = 1
    entries_per_slice: int = 0
    by_line: bool = False
    post_extension: int = 1
    batch: int = 1
    share: int = 1
    element_bytes: int = 1


@dataclass(frozen=True)
class SdpShape:
    """``stages``: how many of X1, X2, Y work; ``uses_y``; ``read_bytes``: the input (0 where it comes on the fly);
    ``operand_bytes``: what the stages read for every element; ``write_bytes``: 0 where the result goes on the fly."""

    width: int
    height: int
    surfaces: int
    stages: int = 0
    uses_y: bool = False
    read_bytes: int = 0
    operand_bytes: int = 0
    write_bytes: int = 0
    batch: int = 1

    @property
    def atoms(self) -> int:
        """Atoms of the cube, all images of a batch together."""
        return self.width * self.height * self.surfaces * self.batch


@dataclass(frozen=True)
class PdpShape:
    """``in_width``: with a split width the columns of all parts, common ones counted again. ``late_rows`` and
    ``late_columns``: output rows and columns whose window ends in the padding behind the input, less one."""

    in_width: int
    in_height: int
    out_width: int
    out_height: int
    surfaces: int
    late_rows: int = 0
    late_columns: int = 0
    read_bytes: int = 0
    write_bytes: int = 0

    @property
    def atoms_through(self) -> int:
        """Atoms that go through the unit: those of the input, and those that only flush windows."""
        lines = self.in_height * (self.in_width + self.late_columns) + self.late_rows * self.out_width
        return self.surfaces * lines


@dataclass(frozen=True)
class CdpShape:
    """A normalisation: its cube in pixels and surfaces."""

    width: int
    height: int
    surfaces: int

    @property
    def atoms(self) -> int:
        """Atoms of the cube."""
        return self.width * self.height * self.surfaces


@dataclass(frozen=True)
class CopyShape:
    """BDMA and Rubik: bytes moved."""

    read_bytes: int
    write_bytes: int


@dataclass(frozen=True)
class ChainShape:
    """Units that work together on one operation, or on several on the fly: a convolution with its SDP and a PDP, an
    SDP with a PDP, or one unit alone (``copy``: BDMA or Rubik).

    ``cvsram``: what lies there and so takes nothing of the memory's bandwidth: "data" and "weights" of the
    convolution, "read", "operand" of the SDP's sums, "write"."""

    conv: ConvolutionShape | None = None
    sdp: SdpShape | None = None
    pdp: PdpShape | None = None
    cdp: CdpShape | None = None
    copy: CopyShape | None = None
    cvsram: frozenset[str] = frozenset()


def taps(shape: ConvolutionShape, constants: CycleConstants) -> int:
    """Passes over a stripe: one for each position in the kernel and each portion of its channels."""
    rows = ceil_div(shape.kernel_height, shape.post_extension)
    return shape.kernel_width * rows * ceil_div(shape.kernel_channels, constants.channels)


def kernel_groups(kernels: int, at_a_time: int) -> list[int]:
    """Kernels of each group that the array works on."""
    full, rest = divmod(kernels, at_a_time)
    return [at_a_time] * full + [rest] * (rest > 0)


def stripes(shape: ConvolutionShape, constants: CycleConstants) -> list[tuple[int, int]]:
    """(length, how many) of the stripes that the output positions are cut into, in order.

    Stripes hold twice as many positions as the array has kernels; what remains when less than two of them are left goes
    in halves but for the last. Image input: the list of a line; its rest is a stripe of its own from half on.
    """
    whole = shape.out_width if shape.by_line else shape.out_width * shape.out_height
    whole = ceil_div(whole, shape.share)
    half = constants.kernels
    full, rest = divmod(whole, 2 * half)
    if not rest or (shape.by_line and rest >= half):
        pieces = [(2 * half, full), (rest, 1)]
    else:
        full = max(full - 1, 0)
        left = whole - full * 2 * half
        halves = max(ceil_div(left - 2 * half, half), 0)
        pieces = [(2 * half, full), (half, halves), (left - halves * half, 1)]
    return [(length, count) for length, count in pieces if length and count]


def mac_cycles(shape: ConvolutionShape, constants: CycleConstants) -> int:
    """Cycles that the MAC array computes, were nothing else in its way."""
    positions = ceil_div(shape.out_width * shape.out_height * shape.batch, shape.share)
    return positions * taps(shape, constants) * ceil_div(shape.kernels, constants.kernels)


def windows_behind(outputs: int, kernel: int, stride: int, pad_before: int, inputs: int) -> int:
    """Windows that end behind the input, less one: PDP flushes the first of them for free."""
    first = max(ceil_div(inputs + pad_before - kernel + 1, stride), 0)  # first window whose end passes the input
    return max(outputs - first - 1, 0)
