"""Jobs that compute by the specification (:mod:`nvdla.kernels.reference`), for ``NVDLA_VALIDATE=reference``.

Each is made of a real job. It decodes nothing and reads and writes the same memory; its arithmetic is plain Python.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nvdla.emulator.cpu.task import CpuOperation
from nvdla.emulator.hardware.cdp import CdpJob
from nvdla.emulator.hardware.convolution.cdma import FeatureSource, ImageSource
from nvdla.emulator.hardware.convolution.checks import pad_element
from nvdla.emulator.hardware.convolution.engine import ConvolutionJob
from nvdla.emulator.hardware.job import Handed, Job, elements_of
from nvdla.emulator.hardware.pdp import AVERAGE, MINIMUM, SUM_BITS, PdpJob, Piece
from nvdla.emulator.hardware.rubik import ContractJob, MergeJob, SplitJob
from nvdla.emulator.hardware.sdp.engine import SdpJob
from nvdla.emulator.hardware.sdp.settings import Operands, XBlock, YBlock
from nvdla.kernels.reference import cdp, conv, floats, fp16_mac, pdp, rubik, sdp, sdp_lut, softmax, winograd
from nvdla.loadable.descriptors.enums import EmuFormat, EmuOpType
from nvdla.util.precision import Precision

LARGEST_SCALED = 65519  # beyond it a half is infinite


def reference_of(job: Job) -> Job | None:
    """Return the job that does the same by the specification; None for copies, which have no arithmetic."""
    kind = KINDS.get(type(job))
    return None if kind is None else _as(kind, job)


def reference_softmax(operation: CpuOperation) -> np.ndarray | None:
    """Return the elements that a softmax must write; None for other operations and for scales without numbers."""
    if operation.type != EmuOpType.SOFTMAX or not operation.source.channels:
        return None
    values = operation.source.line(operation.source.channels)
    if operation.source.format == EmuFormat.FF16:
        rows = softmax.softmax(values.astype(np.float64).tolist()) if np.isfinite(values).all() else None
        return None if rows is None else np.array(rows, values.dtype)
    in_scale, out_scale = (float(np.float32(scale)) for scale in operation.scales)
    if not abs(128 * in_scale) < LARGEST_SCALED or not 0 < abs(out_scale) < np.inf:
        return None
    return np.array(softmax.softmax_int8(values.tolist(), in_scale, out_scale), values.dtype)


def _as(kind: type, thing: object) -> Any:
    """Return a copy of a thing as an instance of a subclass of its class."""
    instance: Any = copy.copy(thing)
    instance.__class__ = kind
    return instance


class _Converting:
    """An input of CDMA whose elements are converted by the specification."""

    settings: Any

    def convert(self, values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Apply the input converter."""
        converter, precision = self.settings.converter, self.settings.precision
        converted = [
            conv.convert_input(x, offset, converter.scale, converter.truncate, str(precision))
            for pixel in values.reshape(-1, values.shape[-1]).tolist()
            for x, offset in zip(pixel, offsets.tolist(), strict=True)
        ]
        return np.array(converted, precision.bits).reshape(values.shape)


class _ReferenceFeatures(_Converting, FeatureSource):
    pass


class _ReferenceImage(_Converting, ImageSource):
    pass


class ReferenceConvolution(ConvolutionJob):
    """A convolution, to be run directly after the real one, whose lines and weights it takes."""

    def run(self, source: Handed = None) -> np.ndarray:
        """Return the result of the real job."""
        if isinstance(self.source, ImageSource):
            self.source = _as(_ReferenceImage, self.source)
        elif type(self.source) is FeatureSource:
            self.source = _as(_ReferenceFeatures, self.source)
        lines, elements = self.operands()
        weights = self.arithmetic.unpack(elements)
        settings, half = self.settings, self.settings.precision is Precision.FP16
        compute = self._winograd if settings.winograd else self._direct
        sums = [compute(cube.tolist(), weights, half) for cube in lines]
        out: np.ndarray = np.zeros(self.arithmetic.shape, np.uint32 if half else np.int32)
        surfaces, atom = out.shape[1], out.shape[4]
        for image, cube in zip(out, sums, strict=True):
            delivered = cube if half else [[[self._delivered(x) for x in pixel] for pixel in line] for line in cube]
            channels = np.zeros((*image.shape[1:3], surfaces * atom), out.dtype)
            channels[..., : settings.kernels] = delivered
            image[...] = channels.reshape(*image.shape[1:3], surfaces, atom).transpose(2, 0, 1, 3)
        return out

    def _delivered(self, accumulator: int) -> int:
        return conv.deliver(accumulator, self.settings.truncate)

    def _direct(self, cube: conv.Cube, weights: np.ndarray, half: bool) -> conv.Cube:
        settings, kernel, block = self.settings, self.settings.kernel, self.engine.machine.config.mac_atomic_c
        image = settings.image
        geometry = conv.ConvolutionGeometry(
            out=(settings.output.height, settings.output.width),
            stride=(settings.stride_y, settings.stride_x),
            dilation=(1, 1) if image else (settings.dilation_y, settings.dilation_x),
            pad=(settings.pad_top, 0 if image else settings.pad_left),
            pad_value=int(pad_element(settings)),
        )
        if image:
            atoms = conv.image_atoms(kernel.height, kernel.channels, block, settings.post_extension)
        else:
            atoms = conv.feature_atoms(kernel.height, kernel.width, kernel.channels, block)
        element = conv.image_element if image else conv.feature_element
        return conv.convolve(
            cube, weights.tolist(), geometry, list(atoms), element, fp16_mac.output if half else conv.output
        )

    def _winograd(self, cube: conv.Cube, weights: np.ndarray, half: bool) -> conv.Cube:
        settings = self.settings
        height, width, channels = settings.output.height, settings.output.width, settings.extended.channels
        kernels = weights.reshape(settings.kernels, -1, 64).tolist()
        result: conv.Cube = [[[] for _ in range(width)] for _ in range(height)]
        for y in range(0, height, 2):
            for x in range(0, width, 2):
                tiles = [[[p[c] for p in line[x : x + 4]] for line in cube[y : y + 4]] for c in range(channels)]
                data = list(_winograd_atoms([self._transformed(tile, half) for tile in tiles]))
                for kernel in kernels:
                    outputs = (winograd.outputs_fp16 if half else winograd.outputs)(kernel, data)
                    for i, value in enumerate(outputs):
                        result[y + i // 2][x + i % 2].append(value)
        return result

    def _transformed(self, tile: winograd.Tile, half: bool) -> winograd.Tile:
        if half:
            return winograd.transform_data_fp16(tile)
        return winograd.transform_data(tile, self.settings.pra_truncate, 8 * self.settings.precision.bytes)


def _winograd_atoms(tiles: list[winograd.Tile]) -> Iterator[list[int]]:
    """Yield the MAC atoms of transformed tiles, one per channel: row, column, channel of four."""
    for first in range(0, len(tiles), winograd.CHANNELS):
        four = tiles[first : first + winograd.CHANNELS]
        yield [tile[row][column] for row in range(4) for column in range(4) for tile in four]


class ReferenceSdp(SdpJob):
    """An operation of SDP."""

    def run(self, source: Handed = None) -> Handed:
        """Process the cube once."""
        settings, cube = self.settings, self._cube(source)
        out = np.empty(cube.shape, settings.output.bits)
        blocks: tuple[XBlock | YBlock, ...] = (settings.x1, settings.x2, settings.y)
        stages = [
            self._stage(block, operands)
            for block, operands in zip(blocks, self.sources, strict=True)
            if not block.bypass
        ]
        if not settings.y.compares:
            for place in np.ndindex(cube.shape):
                x = self._entered(int(cube[place]), from_memory=cube.dtype.itemsize < 4)
                for stage in stages:
                    x = stage(x, *place)
                out[place] = self._left(x)
        if settings.to_pdp:
            return out.reshape(settings.surfaces, settings.height, settings.width, settings.atom)
        self._store(out)
        return None

    def _entered(self, x: int, from_memory: bool) -> int:
        if not self.settings.floating:
            return x
        form = floats.FP16 if from_memory else floats.FP32
        x &= (2 << sum(form)) - 1
        x = floats.flush_nan(x, form) if self.settings.nan_to_zero else x
        return floats.widen(x, form, floats.FP32) if from_memory else x

    def _left(self, x: int) -> int:
        converter, precision = self.settings.converter, str(self.settings.output)
        if self.settings.floating:
            return sdp.output_fp16(x, precision)
        return sdp.convert_output(x, converter.offset, converter.scale, converter.shift, precision)

    def _stage(self, block: XBlock | YBlock, source: Operands | None) -> Callable[[int, int, int, int], int]:
        """Return the function of a block: element, row, pixel and place in the atom."""
        arrays = source.read() if source is not None else (None, None)
        alu = self._operand(block, "alu", arrays[0])
        mul = self._operand(block, "mul", arrays[1])
        floating, algorithm, prelu = self.settings.floating, int(block.algorithm), block.prelu
        look_up = self._lookup() if isinstance(block, YBlock) and block.uses_lut else None

        def stage(x: int, *place: int) -> int:
            a, m = alu(*place), mul(*place)
            if isinstance(block, XBlock) and floating:
                return sdp.block_fp16(x, a, algorithm, m, prelu, False, not block.relu_bypass)
            if isinstance(block, XBlock):
                relu = not block.relu_bypass
                return sdp.x_block(x, a, algorithm, block.alu_shift, m, prelu, block.mul_shift, relu)
            if floating:
                x = sdp.block_fp16(x, a, algorithm, m, prelu, True, False)
            else:
                x = sdp.y_core(x, m, prelu, block.truncate, a, algorithm)
            return look_up(x) if look_up else x

        return stage

    def _operand(
        self, block: XBlock | YBlock, part: str, memory: np.ndarray | None
    ) -> Callable[[int, int, int], int | None]:
        """Return the function that fetches an operand: row, pixel and place in the atom; None where it is bypassed."""
        floating, register = self.settings.floating, getattr(block, f"{part}_operand")
        if getattr(block, f"{part}_bypass"):
            return lambda *place: None
        if memory is None or not getattr(block, f"needs_{part}"):
            if isinstance(block, YBlock):  # 32 bits, as they are
                return lambda *place: register & 0xFFFFFFFF if floating else register
            return lambda *place: self._entered(register, from_memory=True)

        def fetch(row: int, pixel: int, at: int) -> int:
            x = int(memory[row % memory.shape[0], pixel if memory.shape[1] > 1 else 0, at])
            if floating or isinstance(block, XBlock):
                return self._entered(x, from_memory=True)
            converter = getattr(block, f"{part}_converter")
            numbers = (converter.offset, converter.scale, converter.truncate)
            return x if converter.bypass else sdp.convert_operand(x, *numbers)

        return fetch

    def _lookup(self) -> Callable[[int], int]:
        """Return the function of Y's lookup tables."""
        lookup: Any = self._pipeline._lut
        half = self.settings.floating
        le, lo = (
            sdp_lut.LookupTable([word & 0xFFFF if half else word for word in words.tolist()], *table)
            for words, table in zip(lookup.entries, (lookup.le, lookup.lo), strict=True)
        )
        look_up = sdp_lut.lookup_fp16 if half else sdp_lut.lookup
        return lambda x: look_up(x, le, lo, lookup.choice)[0]


class ReferencePdp(PdpJob):
    """A pooling."""

    def run(self, source: Handed = None) -> None:
        """Pool once."""
        elements = self.settings.elements
        cube = elements_of(self.source, elements) if self.source is not None else source
        assert cube is not None
        out = np.empty((*self.destination.shape[:3], cube.shape[3]), elements.bits)
        flush = self.source is not None and self.settings.flush_nan and elements is Precision.FP16
        for piece in self.settings.pieces:
            for s, a in np.ndindex(cube.shape[0], cube.shape[3]):
                plane = cube[s, :, piece.source : piece.source + piece.width, a].view(elements.bits).tolist()
                if flush:
                    plane = [[floats.flush_nan(x, floats.FP16) for x in row] for row in plane]
                out[s, :, piece.target : piece.target + piece.out_width, a] = self._pooled(plane, piece)
        self.destination[...] = out.view(np.uint8)

    def _pooled(self, plane: pdp.Plane, piece: Piece) -> pdp.Plane:
        settings, v, h = self.settings, self.settings.vertical, piece.window
        vertical = pdp.PoolGeometry(v.kernel, v.stride, v.pad_before, settings.out_height)
        horizontal = pdp.PoolGeometry(h.kernel, h.stride, h.pad_before, piece.out_width)
        half = settings.elements is Precision.FP16
        if settings.method != AVERAGE:
            pool = pdp.extreme_fp16 if half else pdp.extreme
            return pool(plane, vertical, horizontal, settings.method == MINIMUM)
        pads, reciprocal = settings.pad_values.tolist(), settings.reciprocal
        if half:
            return pdp.average_fp16(plane, vertical, horizontal, pads, reciprocal)
        bits = (SUM_BITS[settings.elements], 8 * settings.elements.bytes)
        return pdp.average(plane, vertical, horizontal, pads, reciprocal, bits)


class ReferenceCdp(CdpJob):
    """A normalization."""

    def run(self, source: Handed = None) -> None:
        """Normalize once."""
        data = elements_of(self.source, self.settings.elements)
        (surfaces, height, width, atom), channels = data.shape, self.settings.channels
        out = np.empty(data.shape, data.dtype)
        for y, x in np.ndindex(height, width):
            pixel = data[:, y, x].reshape(-1).tolist()
            pixel[channels:] = [None] * (surfaces * atom - channels)
            out[:, y, x] = np.array(self._normalized(pixel), data.dtype).reshape(surfaces, atom)
        self.destination[...] = out.view(np.uint8)

    def _normalized(self, pixel: list[int]) -> list[int]:
        settings, function, priority = self.settings, self.settings.function, self.settings.priority
        half = settings.elements is Precision.FP16
        look_up, mask = (cdp.look_up_fp16, 0xFFFF) if half else (cdp.look_up, -1)
        le, lo = ([word & mask for word in words.tolist()] for words in self._tables)
        tables = (lambda x: look_up(x, le, settings.le)), (lambda x: look_up(x, lo, settings.lo))
        if settings.converters is None:
            return cdp.normalize_fp16(pixel, function, settings.flush_nan, tables, priority)[0]
        return cdp.normalize(pixel, function, *settings.converters, tables, priority)[0]


class ReferenceContract(ContractJob):
    """A contraction."""

    def run(self, source: Handed = None) -> None:
        """Move the elements once."""
        stride_y, stride_x = self.settings.strides
        atoms = np.array(rubik.contract(self.source.tolist(), stride_y, stride_x), np.uint8)
        for sy, target in enumerate(self.targets):
            target[...] = atoms[:, sy::stride_y]


class ReferenceSplit(SplitJob):
    """A feature cube to planes."""

    def run(self, source: Handed = None) -> None:
        """Move the elements once."""
        cube = elements_of(self.source, self.elements)
        planes = rubik.split(cube.tolist(), self.destination.shape[0], self.elements.bytes)
        self.destination[...] = np.array(planes, cube.dtype).view(np.uint8).reshape(self.destination.shape)


class ReferenceMerge(MergeJob):
    """Planes to a feature cube."""

    def run(self, source: Handed = None) -> None:
        """Move the elements once."""
        lines = elements_of(self.source, self.elements)
        atom = self.destination.shape[3] // self.elements.bytes
        self.destination[...] = np.array(rubik.merge(lines[:, :, 0].tolist(), atom), lines.dtype).view(np.uint8)


KINDS: dict[type[Job], type[Job]] = {
    ConvolutionJob: ReferenceConvolution,
    SdpJob: ReferenceSdp,
    PdpJob: ReferencePdp,
    CdpJob: ReferenceCdp,
    ContractJob: ReferenceContract,
    SplitJob: ReferenceSplit,
    MergeJob: ReferenceMerge,
}
