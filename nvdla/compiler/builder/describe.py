"""Descriptors of hardware operations: the firmware's operation and surface structures, field by field.

The values follow what the firmware checks (kmd/firmware/{conv,sdp,pdp,cdp}.c) and the programming guide requires.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure

import numpy as np

from nvdla.compiler.builder import cbuf, packing
from nvdla.compiler.builder.addresses import CONSTANTS, CVSRAM, Addresses, Constants, Cube
from nvdla.compiler.builder.cbuf import kernel_bytes, line_entries, stored_kernel_bytes
from nvdla.compiler.builder.ir import (
    BYTES,
    Contract,
    Convert,
    Convolve,
    Lut,
    LutTable,
    Normalize,
    PixelConverter,
    Pool,
    Process,
    Stage,
    Surface,
)
from nvdla.compiler.builder.packing import PackedWeights
from nvdla.compiler.builder.schedule import HardwareOperation, widest_pool
from nvdla.loadable.descriptors.abi import NEW
from nvdla.loadable.descriptors.enums import (
    Activation,
    ConvMode,
    DataFormat,
    LutMethod,
    MemType,
    PixelOverride,
    PoolMode,
    Precision,
    RubikMode,
    SdpAlu,
    SdpMode,
    SdpType,
    WeightFormat,
)
from nvdla.loadable.enums import PIXEL_FORMATS, PixelFormat
from nvdla.util.rounding import align, ceil_div

_PRECISION = {str(precision): precision for precision in Precision}
_ALU = {"add": SdpAlu.SUM, "max": SdpAlu.MAX, "min": SdpAlu.MIN}
_POOL = {"average": PoolMode.AVG, "max": PoolMode.MAX, "min": PoolMode.MIN}

MOST_COLUMNS = 1024
"""Columns of a part of a pool's input: PARTIAL_WIDTH_IN has 10 bits."""


class Describer:
    """Fills the containers of one task. ``indices``: address index of each memory; ``luts``: tables in use so far."""

    def __init__(
        self, addresses: Addresses, constants: Constants, indices: dict[str, int], packed: PackedWeights
    ) -> None:
        self.addresses, self.constants, self.indices, self.packed = addresses, constants, indices, packed
        self.config = addresses.config
        self.luts: list[Lut] = []
        self._places: dict[int, int] = {}

    def describe(self, hardware: HardwareOperation) -> tuple[Structure, Structure]:
        """(operation container, surface container)."""
        operation, surface = NEW.OperationContainer(), NEW.SurfaceContainer()
        what = hardware.operation
        if isinstance(what, Convolve):
            self._conv(hardware, what, operation.conv_op, surface.conv_surface)
        elif isinstance(what, Process):
            self._sdp(hardware, what, operation.sdp_op, surface.sdp_surface)
        elif isinstance(what, Pool):
            self._pdp(hardware, what, operation.pdp_op, surface.pdp_surface)
        elif isinstance(what, Contract):
            self._rubik(what, operation.rubik_op, surface.rubik_surface)
        else:
            self._cdp(what, operation.cdp_op, surface.cdp_surface)
        return operation, surface

    # ---- cubes

    def _cube(self, field: Structure, cube: Cube, flies: bool = False) -> None:
        field.type = MemType.HW if flies else MemType.CV if cube.memory == CVSRAM else MemType.MC
        field.address = -1 if flies else self.indices[cube.memory]
        field.offset, field.size = (0 if flies else cube.offset), cube.size
        field.width, field.height, field.channel = cube.width, cube.height, cube.channels
        field.line_stride, field.surf_stride = cube.line_stride, cube.surface_stride

    def _surface(self, field: Structure, surface: Surface, flies: bool = False) -> None:
        cube = self.addresses.flying(*surface.shape, surface.precision) if flies else self.addresses.cube(surface)
        self._cube(field, cube, flies)

    @staticmethod
    def _none(*fields: Structure) -> None:
        for field in fields:
            field.address = -1

    # ---- convolution

    def _conv(self, hardware: HardwareOperation, operation: Convolve, op: Structure, surface: Structure) -> None:
        source, result = operation.source, operation.process.destination
        _, channels, rows, columns = operation.weights.shape
        precision = source.precision
        op.entry_per_slice = line_entries(operation, self.config)
        op.data_bank, op.weight_bank = hardware.data_banks, hardware.weight_banks
        op.skip_data_rls, op.data_reuse = int(hardware.keeps_data), int(hardware.reuses_data)
        op.skip_weight_rls, op.weight_reuse = int(hardware.keeps_weights), int(hardware.reuses_weights)
        op.data_format, op.pixel_override = DataFormat.FEATURE, PixelOverride.INT
        op.fetch_grain = op.batch = 1
        op.release = op.input_height_csc = source.height
        op.input_width_csc, op.input_channel_csc = source.width, channels
        op.kernel_width_csc, op.kernel_height_csc, op.kernel_channel_csc = columns, rows, channels
        op.input_width_cmac, op.input_height_cmac = result.width, result.height
        op.bytes_per_kernel = kernel_bytes(operation)
        op.conv_stride_y, op.conv_stride_x = operation.stride
        op.dilation_y, op.dilation_x = operation.dilation
        op.pad_y_top, op.pad_y_bottom, op.pad_x_left, op.pad_x_right = operation.padding
        op.in_precision, op.out_precision = _PRECISION[source.root.stored], _PRECISION[precision]
        op.in_cvt.scale, op.in_cvt.enable = 1, int(precision == Precision.INT8)
        op.pad_val = source.zero
        if source.root.pixels is not None:
            self._image(operation, source.root.pixels, op, surface)
        if operation.winograd:
            self._winograd(operation, op)
        # The firmware refuses any scale but 1 and any offset here (conv.c).
        op.out_cvt.scale, op.out_cvt.truncate, op.out_cvt.enable = 1, operation.truncate, 1
        op.weight_format = WeightFormat.COMPRESSED if hardware.compressed else WeightFormat.UNCOMPRESSED
        self._weights(operation, hardware.compressed, surface)
        self._surface(surface.src_data, source)
        self._surface(surface.dst_data, result, flies=True)

    def _image(self, operation: Convolve, form: PixelFormat, op: Structure, surface: Structure) -> None:
        """Return the settings that an image changes: a row of a kernel is one vector of channels."""
        op.data_format = int(form)
        if len(PIXEL_FORMATS[form].planes) > 1:
            layout, longer = self.addresses.layout(operation.source.root), PIXEL_FORMATS[form].lines(1)
            surface.in_line_uv_stride = longer * layout.line_stride
            # From the first line of this band to the same line of the second plane.
            surface.offset_u = layout.surface_stride + operation.source.top * (longer - 1) * layout.line_stride
        op.input_channel_csc = cbuf.components(form)
        op.kernel_width_csc, op.kernel_channel_csc = 1, cbuf.kernel_channels(operation)
        if operation.source.root.converter is not None:
            self._converter(operation.source.root.converter, op)
        op.post_extension = cbuf.post_extension(operation, self.config).bit_length() - 1

    @staticmethod
    def _converter(converter: PixelConverter, op: Structure) -> None:
        """Unsigned pixels: a mean a channel, one scale."""
        op.pixel_override = PixelOverride.UINT
        op.mean_format = int(any(converter.means))
        op.mean_ry, op.mean_gu, op.mean_bv, op.mean_ax = (*converter.means, 0, 0, 0)[:4]
        op.in_cvt.enable, op.in_cvt.scale, op.in_cvt.truncate = 1, converter.scale, converter.shift

    def _winograd(self, operation: Convolve, op: Structure) -> None:
        """Return the settings that the method changes: a 4x4 kernel on data that CDMA extends in all directions."""
        geometry = packing.geometry_of(operation)
        op.conv_mode, op.entry_per_slice = ConvMode.WINOGRAD, geometry.line(self.config)
        op.release = op.input_height_csc = geometry.result[1] + packing.BLOCK
        op.input_width_csc = geometry.result[2] + packing.BLOCK
        op.kernel_width_csc = op.kernel_height_csc = packing.BLOCK
        op.input_channel_csc = packing.extended_channels(operation.source.channels, self.config)
        op.kernel_channel_csc = op.input_channel_csc
        op.bytes_per_kernel = stored_kernel_bytes(operation, self.config)

    def _weights(self, operation: Convolve, compressed: bool, surface: Structure) -> None:
        _, channels, rows, columns = operation.weights.shape
        if compressed:
            compressed_weights = self.packed.compressed(operation)
            pieces = [(surface.weight_data, compressed_weights.stored), (surface.wmb_data, compressed_weights.mask)]
            pieces.append((surface.wgs_data, compressed_weights.sizes))
        else:
            pieces = [(surface.weight_data, self.packed.of(operation))]
            self._none(surface.wmb_data, surface.wgs_data)
        for field, data in pieces:
            self._cube(field, Cube(CONSTANTS, self.constants.add(data), channels, rows, columns, 0, 0, len(data)))

    # ---- SDP

    def _sdp(self, hardware: HardwareOperation, process: Process, op: Structure, surface: Structure) -> None:
        result = process.destination
        precision = result.precision
        op.src_precision = _PRECISION[process.source.precision if process.source is not None else precision]
        op.dst_precision = _PRECISION[precision]
        op.lut_index = self._lut(process.lut)
        self._convert(op.out_cvt, process.convert, precision)
        op.batch_num = 1
        leader = hardware.chain[0].operation
        op.conv_mode = ConvMode.WINOGRAD if isinstance(leader, Convolve) and leader.winograd else ConvMode.DIRECT
        self._surface(surface.src_data, process.source or result, hardware.source_flies)
        self._surface(surface.dst_data, result, hardware.destination_flies)
        self._none(surface.x1_data, surface.x2_data, surface.y_data)
        self._stage(op.x1_op, surface.x1_data, process.x1, process)
        self._stage(op.x2_op, surface.x2_data, process.x2, process)
        if process.lut is not None:
            op.y_op.enable, op.y_op.act, op.y_op.alu_type = 1, Activation.LUT, SdpAlu.SUM
            op.y_op.precision = _PRECISION[precision] if precision == Precision.FP16 else Precision.INT16

    @staticmethod
    def _convert(field: Structure, convert: Convert, precision: str) -> None:
        field.scale, field.truncate, field.offset = convert.scale, convert.shift, convert.offset
        field.enable = int(precision != Precision.FP16)

    def _stage(self, field: Structure, cube: Structure, stage: Stage | None, process: Process) -> None:
        if stage is None:
            return
        half = process.destination.precision == Precision.FP16
        field.enable = 1
        field.alu_type = _ALU[stage.alu or "add"]
        kinds = {(False, False): SdpType.NONE, (True, False): SdpType.ADD, (False, True): SdpType.MUL}
        field.type = kinds.get((stage.alu is not None, stage.multiplier is not None), SdpType.BOTH)
        field.act = Activation.PRELU if stage.prelu else Activation.RELU if stage.relu else Activation.NONE
        field.shift_value, field.truncate = stage.alu_shift, stage.truncate
        field.precision = Precision.FP16 if half else Precision.INT16
        field.mul_operand = 1
        operands = [
            operand for operand in (stage.alu_operand, stage.multiplier) if not isinstance(operand, Surface | None)
        ]
        if stage.surfaces:
            field.mode = SdpMode.PER_POINT
            field.precision = _PRECISION[stage.surfaces[0].precision]
            self._surface(cube, stage.surfaces[0])
        elif any(np.ndim(operand) for operand in operands):
            field.mode = SdpMode.PER_KERNEL
            self._per_kernel(cube, operands, process, half)
        else:
            field.mode = SdpMode.PER_LAYER
            if stage.alu is not None:
                field.alu_operand = _register(operands[0], half)
            if stage.multiplier is not None:
                field.mul_operand = _register(operands[-1], half)

    def _per_kernel(
        self, field: Structure, operands: Sequence[int | float | np.ndarray], process: Process, half: bool
    ) -> None:
        """Operands a channel, 16 bits each; ALU and MUL side by side where both are wanted; whole atoms."""
        channels = process.destination.channels
        atom = self.config.memory_atom // BYTES[process.destination.precision]
        table = np.zeros((align(channels, atom), len(operands)), np.float16 if half else np.int16)
        for column, operand in enumerate(operands):
            table[:channels, column] = operand
        offset = self.constants.add(table.tobytes())
        stride = atom * 2 * len(operands)
        self._cube(field, Cube(CONSTANTS, offset, channels, 1, 1, stride, stride, len(table.tobytes())))

    # ---- PDP and CDP

    def _pdp(self, hardware: HardwareOperation, pool: Pool, op: Structure, surface: Structure) -> None:
        widest = min(widest_pool(pool, self.config), MOST_COLUMNS // pool.stride[1])
        parts = 1 if hardware.source_flies else ceil_div(pool.destination.width, widest)
        op.split_num = parts
        if parts > 1:
            last = pool.destination.width - (parts - 1) * widest
            op.partial_width_first, op.partial_width_last = widest, last
            op.partial_width_mid = widest if parts > 2 else 0
            for which in ("first", "mid", "last"):
                setattr(op, f"partial_in_width_{which}", getattr(op, f"partial_width_{which}") * pool.stride[1])
        op.pool_mode, op.precision = _POOL[pool.mode], _PRECISION[pool.source.precision]
        # Window sizes are written one less (POOL_SIZE_1 is 0), strides as they are.
        op.pool_height, op.pool_width = pool.kernel[0] - 1, pool.kernel[1] - 1
        op.stride_y, op.stride_x = pool.stride
        op.pad_top, op.pad_bottom, op.pad_left, op.pad_right = pool.padding
        if pool.mode == "average":
            # What 1, 2 ... elements outside the cube add to a sum.
            op.padding_value[:] = [number * pool.source.zero for number in range(1, len(op.padding_value) + 1)]
        self._surface(surface.src_data, pool.source, hardware.source_flies)
        self._surface(surface.dst_data, pool.destination)

    def _cdp(self, normalize: Normalize, op: Structure, surface: Structure) -> None:
        op.in_precision = op.out_precision = _PRECISION[normalize.source.precision]
        op.lut_index = self._lut(normalize.lut)
        op.in_cvt.scale, op.in_cvt.enable = 1, 1
        self._convert(op.out_cvt, normalize.convert, Precision.INT8)
        op.local_size = normalize.size
        op.bypass_sqsum = op.bypass_out_mul = int(normalize.direct)
        self._surface(surface.src_data, normalize.source)
        self._surface(surface.dst_data, normalize.destination)

    def _rubik(self, contract: Contract, op: Structure, surface: Structure) -> None:
        op.mode, op.precision = RubikMode.CONTRACT, _PRECISION[contract.source.precision]
        op.stride_y, op.stride_x = contract.stride
        self._surface(surface.src_data, contract.source)
        self._surface(surface.dst_data, contract.destination)

    def _lut(self, lut: Lut | None) -> int:
        if lut is None:
            return -1
        if id(lut) not in self._places:
            self._places[id(lut)] = len(self.luts)
            self.luts.append(lut)
        return self._places[id(lut)]


def _register(value: float | np.ndarray, half: bool) -> int:
    """A 16-bit operand register: a whole number, or the bits of a half."""
    return int(np.float16(value).view(np.uint16)) if half else int(value)


def lut_param(lut: Lut) -> Structure:
    """The firmware's table structure."""
    param, half = NEW.LutParam(), lut.precision == Precision.FP16
    param.linear_exp_table[:] = _entries(lut.le, half)
    param.linear_only_table[:] = _entries(lut.lo, half)
    param.method = LutMethod.EXPONENTIAL if lut.le.exponent else LutMethod.LINEAR
    param.linear_exp_offset.frac_bits = lut.le.select
    param.linear_only_offset.frac_bits = lut.lo.select
    param.linear_exp_start, param.linear_exp_end = _edge(lut.le.start, half), _edge(lut.le.end, half)
    param.linear_only_start, param.linear_only_end = _edge(lut.lo.start, half), _edge(lut.lo.end, half)
    if half:
        for name, table in (("linear_exp", lut.le), ("linear_only", lut.lo)):
            getattr(param, f"{name}_underflow_slope").data_f = _register(table.underflow_slope, True)
            getattr(param, f"{name}_overflow_slope").data_f = _register(table.overflow_slope, True)
    param.hybrid_priority = int(lut.prefer_lo)
    param.underflow_priority, param.overflow_priority = int(lut.low_lo), int(lut.high_lo)
    return param


def _entries(table: LutTable, half: bool) -> list[int]:
    values = table.values.astype(np.float16).view(np.int16) if half else table.values
    return [int(value) for value in values]


def _edge(value: float, half: bool) -> int:
    """Start or end of a table: a whole number in 64 bits, or the bits of a float32."""
    return int(np.float32(value).view(np.uint32)) if half else int(value) & ((1 << 64) - 1)
