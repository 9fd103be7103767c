"""The registers of CDMA, CSC, CMAC and CACC as one description of a convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.errors import ConfigError
from nvdla.hardware.register_file import RegisterGroup
from nvdla.memory.address_space import Space
from nvdla.precision import Precision
from nvdla.rounding import ceil_div


@dataclass(frozen=True)
class Size:
    """Extent of a cube in elements."""

    width: int
    height: int
    channels: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}x{self.channels} (width x height x channels)"


@dataclass(frozen=True)
class Padding:
    """Padding as CDMA has it (images: left and right; Winograd: all sides)."""

    left: int
    right: int
    top: int
    bottom: int


@dataclass(frozen=True)
class InputConverter:
    """The input converter of CDMA: ``(x - offset) * scale >> truncate`` with one offset for each of R, G, B, A."""

    enabled: bool
    offsets: tuple[int, int, int, int]
    scale: int
    truncate: int


@dataclass(frozen=True)
class ConvolutionSettings:
    """One convolution layer. Sizes are real sizes (register + 1), padding values are signed 16-bit numbers.

    ``fetch_pad_value`` is what CDMA writes beside image lines and around Winograd data, ``pad_value`` what CSC
    puts in everywhere else (cmod/cdma/NV_NVDLA_cdma.cpp:2470, csc/NV_NVDLA_csc.cpp:770). ``fetched_lines``: how many
    CDMA fetches at a time. ``packed_lines``: lines follow each other without a gap, ``packed_cube``: surfaces, too.
    """

    winograd: bool
    image: bool
    input_precision: Precision
    precision: Precision
    batches: int
    data: Size
    extended: Size
    output: Size
    kernel: Size
    kernels: int
    stride_x: int
    stride_y: int
    dilation_x: int
    dilation_y: int
    pad_left: int
    pad_top: int
    pad_value: int
    post_extension: int
    compressed: bool
    data_reuse: bool
    weight_reuse: bool
    keep_data: bool
    keep_weights: bool
    released_lines: int
    banks: tuple[int, int]
    entries_per_slice: int
    fetched_lines: int
    packed_lines: bool
    packed_cube: bool
    weight_bytes: int
    weight_address: int
    truncate: int
    pra_truncate: int
    nan_to_zero: bool
    converter: InputConverter
    fetch_stride_x: int
    fetch_stride_y: int
    fetch_padding: Padding
    fetch_pad_value: int

    @property
    def converts_nothing(self) -> bool:
        """True when the input converter is off, or cannot change an integer element."""
        converter = self.converter
        identity = (converter.offsets[0], converter.scale, converter.truncate) == (0, 1, 0)
        return not converter.enabled or (identity and self.input_precision is self.precision)

    @property
    def kernel_bytes(self) -> int:
        """Bytes of all kernels, uncompressed."""
        kernel = self.kernel
        return self.kernels * kernel.width * kernel.height * kernel.channels * self.precision.bytes

    @property
    def mask_bytes(self) -> int:
        """Bytes of the mask of compressed weights, a bit an element; 0 of plain ones."""
        return ceil_div(self.kernel_bytes // self.precision.bytes, 8) if self.compressed else 0

    @property
    def fetched(self) -> tuple[object, ...]:
        """What decides which lines CDMA makes of a cube in memory: strides and padding for Winograd alone."""
        kind = (self.winograd, self.image, self.input_precision, self.precision, self.nan_to_zero, self.converter)
        sizes = (self.batches, self.data, self.extended, self.entries_per_slice)
        extension = (self.fetch_stride_x, self.fetch_stride_y, self.fetch_padding, self.fetch_pad_value)
        return *kind, *sizes, *(extension if self.winograd else ())

    @property
    def layout(self) -> tuple[bool, bool]:
        """What must be the same, beside the banks, for a layer to re-use what the one before left in the buffer."""
        return self.winograd, self.image


def _size(group: RegisterGroup, register: str, what: str, end: str) -> Size:
    """Width, height and channels in two registers, each one less than it is."""
    width, height, channels = (
        group[f"{register}_{number}.{what}_{side}{end}"] + 1
        for number, side in ((0, "WIDTH"), (0, "HEIGHT"), (1, "CHANNEL"))
    )
    return Size(width, height, channels)


def decode(groups: dict[str, RegisterGroup]) -> ConvolutionSettings:
    """Read the settings. Raises ConfigError for a value that has no meaning."""
    cdma, csc, cacc = groups["CDMA"], groups["CSC"], groups["CACC"]
    return ConvolutionSettings(
        winograd=bool(csc["D_MISC_CFG.CONV_MODE"]),
        image=bool(csc["D_DATAIN_FORMAT.DATAIN_FORMAT"]),
        input_precision=_precision(cdma, "IN_PRECISION"),
        precision=_precision(csc, "PROC_PRECISION"),
        batches=csc["D_BATCH_NUMBER.BATCHES"] + 1,
        data=_size(cdma, "D_DATAIN_SIZE", "DATAIN", ""),
        extended=_size(csc, "D_DATAIN_SIZE_EXT", "DATAIN", "_EXT"),
        output=_size(csc, "D_DATAOUT_SIZE", "DATAOUT", ""),
        kernel=_size(csc, "D_WEIGHT_SIZE_EXT", "WEIGHT", "_EXT"),
        kernels=csc["D_WEIGHT_SIZE_EXT_1.WEIGHT_KERNEL"] + 1,
        stride_x=csc["D_CONV_STRIDE_EXT.CONV_X_STRIDE_EXT"] + 1,
        stride_y=csc["D_CONV_STRIDE_EXT.CONV_Y_STRIDE_EXT"] + 1,
        dilation_x=csc["D_DILATION_EXT.X_DILATION_EXT"] + 1,
        dilation_y=csc["D_DILATION_EXT.Y_DILATION_EXT"] + 1,
        pad_left=csc["D_ZERO_PADDING.PAD_LEFT"],
        pad_top=csc["D_ZERO_PADDING.PAD_TOP"],
        pad_value=csc.signed("D_ZERO_PADDING_VALUE.PAD_VALUE"),
        post_extension=1 << csc["D_POST_Y_EXTENSION.Y_EXTENSION"],
        compressed=bool(csc["D_WEIGHT_FORMAT.WEIGHT_FORMAT"]),
        data_reuse=bool(csc["D_MISC_CFG.DATA_REUSE"]),
        weight_reuse=bool(csc["D_MISC_CFG.WEIGHT_REUSE"]),
        keep_data=bool(csc["D_MISC_CFG.SKIP_DATA_RLS"]),
        keep_weights=bool(csc["D_MISC_CFG.SKIP_WEIGHT_RLS"]),
        released_lines=csc["D_RELEASE.RLS_SLICES"] + 1,
        banks=(csc["D_BANK.DATA_BANK"] + 1, csc["D_BANK.WEIGHT_BANK"] + 1),
        entries_per_slice=csc["D_ENTRY_PER_SLICE.ENTRIES"] + 1,
        fetched_lines=cdma["D_FETCH_GRAIN.GRAINS"] + 1,
        packed_lines=bool(cdma["D_DAIN_MAP.LINE_PACKED"]),
        packed_cube=bool(cdma["D_DAIN_MAP.LINE_PACKED"] and cdma["D_DAIN_MAP.SURF_PACKED"]),
        weight_bytes=cdma["D_WEIGHT_BYTES"],
        weight_address=cdma.address("D_WEIGHT_ADDR_HIGH", "D_WEIGHT_ADDR_LOW"),
        truncate=cacc["D_CLIP_CFG.CLIP_TRUNCATE"],
        pra_truncate=csc["D_PRA_CFG.PRA_TRUNCATE"],
        nan_to_zero=bool(cdma["D_NAN_FLUSH_TO_ZERO.NAN_TO_ZERO"]),
        converter=_converter(cdma, image=bool(csc["D_DATAIN_FORMAT.DATAIN_FORMAT"])),
        fetch_stride_x=cdma["D_CONV_STRIDE.CONV_X_STRIDE"] + 1,
        fetch_stride_y=cdma["D_CONV_STRIDE.CONV_Y_STRIDE"] + 1,
        fetch_padding=Padding(
            cdma["D_ZERO_PADDING.PAD_LEFT"],
            cdma["D_ZERO_PADDING.PAD_RIGHT"],
            cdma["D_ZERO_PADDING.PAD_TOP"],
            cdma["D_ZERO_PADDING.PAD_BOTTOM"],
        ),
        fetch_pad_value=cdma.signed("D_ZERO_PADDING_VALUE.PAD_VALUE"),
    )


def data_space(cdma: RegisterGroup) -> Space:
    """The memory that the input lies in."""
    return Space.from_ram_type(cdma["D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE"])


def weight_space(cdma: RegisterGroup) -> Space:
    """The memory that the weights lie in."""
    return Space.from_ram_type(cdma["D_WEIGHT_RAM_TYPE.WEIGHT_RAM_TYPE"])


def pad_element(settings: ConvolutionSettings) -> Any:
    """CSC's padding value in the processing precision: int8 takes the low byte, fp16 the bits."""
    return np.array(settings.pad_value & 0xFFFF, np.uint16).astype(settings.precision.bits)[()]


def fetch_pad_element(settings: ConvolutionSettings) -> Any:
    """CDMA's padding value in the processing precision."""
    return np.array(settings.fetch_pad_value & 0xFFFF, np.uint16).astype(settings.precision.bits)[()]


def window_strides(settings: ConvolutionSettings) -> dict[str, int]:
    """The fields of kernels.conv.Window: an image line is one row of channels, its kernel has one column."""
    channels = settings.extended.channels
    return {
        "out_height": settings.output.height,
        "out_width": settings.output.width,
        "stride_y": settings.stride_y,
        "stride_x": settings.stride_x * channels,
        "dilation_y": 1 if settings.image else settings.dilation_y,
        "stride_column": 0 if settings.image else settings.dilation_x * channels,
    }


def padded_size(settings: ConvolutionSettings) -> tuple[int, int]:
    """Lines and columns of the padded cube: what the windows of all outputs cover."""
    kernel, out, strides = settings.kernel, settings.output, window_strides(settings)
    rows = (out.height - 1) * settings.stride_y + (kernel.height - 1) * strides["dilation_y"] + 1
    elements = (out.width - 1) * strides["stride_x"] + (kernel.width - 1) * strides["stride_column"] + kernel.channels
    return rows, ceil_div(elements, settings.extended.channels)


def _precision(group: RegisterGroup, field: str) -> Precision:
    value = group[f"D_MISC_CFG.{field}"]
    if not Precision(value).known:
        raise ConfigError(f"{group.unit}.D_MISC_CFG.{field} is {value}: known are 0 (int8), 1 (int16), 2 (fp16)")
    return Precision(value)


def _converter(cdma: RegisterGroup, image: bool) -> InputConverter:
    """Mean and CVT_OFFSET are alternatives, never added (cmod/cdma/NV_NVDLA_cdma.cpp:2493).

    Only images have a mean: feature data always take CVT_OFFSET (:1450).
    """
    if image and cdma["D_MEAN_FORMAT.MEAN_FORMAT"]:
        fields = (
            "D_MEAN_GLOBAL_0.MEAN_RY",
            "D_MEAN_GLOBAL_0.MEAN_GU",
            "D_MEAN_GLOBAL_1.MEAN_BV",
            "D_MEAN_GLOBAL_1.MEAN_AX",
        )
        first, second, third, fourth = (cdma.signed(field) for field in fields)
    else:
        first = second = third = fourth = cdma.signed("D_CVT_OFFSET.CVT_OFFSET")
    return InputConverter(
        enabled=bool(cdma["D_CVT_CFG.CVT_EN"]),
        offsets=(first, second, third, fourth),
        scale=cdma.signed("D_CVT_SCALE.CVT_SCALE"),
        truncate=cdma["D_CVT_CFG.CVT_TRUNCATE"],
    )
