"""Settings of a convolution, decoded from registers, and their checks.

Atoms of a whole entry are adjacent, one entry per column; the remaining atoms are packed, two or four columns per entry
(cmod/cdma/NV_NVDLA_cdma.cpp:1553, csc/NV_NVDLA_csc.cpp:806). Lines of images, and of Winograd data, are stored without
gaps between elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.register_file import RegisterGroup
from nvdla.emulator.memory.address_space import Space
from nvdla.errors import ConfigError, ScheduleError
from nvdla.util.precision import Precision
from nvdla.util.rounding import align, ceil_div


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

    ``fetch_pad_value`` is what CDMA writes to the left and right of image lines and around Winograd data, ``pad_value``
    what CSC puts in everywhere else (cmod/cdma/NV_NVDLA_cdma.cpp:2470, csc/NV_NVDLA_csc.cpp:770). ``fetched_lines``:
    how many CDMA fetches at a time. ``packed_lines``: lines follow each other without a gap, ``packed_cube``: surfaces,
    too.
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
        """Settings that decide which lines CDMA makes of a cube in memory: strides and padding for Winograd alone."""
        kind = (self.winograd, self.image, self.input_precision, self.precision, self.nan_to_zero, self.converter)
        sizes = (self.batches, self.data, self.extended, self.entries_per_slice)
        extension = (self.fetch_stride_x, self.fetch_stride_y, self.fetch_padding, self.fetch_pad_value)
        return *kind, *sizes, *(extension if self.winograd else ())

    @property
    def layout(self) -> tuple[bool, bool]:
        """Settings that must be equal, in addition to the banks, for a layer to reuse data of the layer before."""
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
    """Memory of the input."""
    return Space.from_ram_type(cdma["D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE"])


def weight_space(cdma: RegisterGroup) -> Space:
    """Memory of the weights."""
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
        raise ConfigError(f"{group.unit}.D_MISC_CFG.{field}: must be 0 (int8), 1 (int16) or 2 (fp16), got {value}")
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


def entries_per_slice(channel_bytes: int, width: int, config: Configuration) -> int:
    """Entries that a line of ``width`` columns takes whose columns have ``channel_bytes`` bytes."""
    whole, rest = divmod(ceil_div(channel_bytes, config.memory_atom), _atoms_per_entry(config))
    return whole * width + (ceil_div(width, _columns_per_entry(rest, config)) if rest else 0)


def to_entries(lines: np.ndarray, config: Configuration) -> np.ndarray:
    """Lines (lines, width, bytes of whole atoms) uint8 as entries (lines, entries of a slice, bytes of an entry)."""
    count, width, size = lines.shape
    entry = config.cbuf_entry_bytes
    whole, rest = divmod(size, entry)
    result = np.zeros((count, entries_per_slice(size, width, config), entry), np.uint8)
    full = lines[:, :, : whole * entry].reshape(count, width, whole, entry)
    result[:, : whole * width] = full.transpose(0, 2, 1, 3).reshape(count, whole * width, entry)
    if rest:
        columns = _columns_per_entry(rest // config.memory_atom, config)
        tail = np.zeros((count, align(width, columns), rest), np.uint8)
        tail[:, :width] = lines[:, :, whole * entry :]
        packed = tail.reshape(count, -1, columns * rest)
        result[:, whole * width :, : columns * rest] = packed
    return result


def from_entries(entries: np.ndarray, width: int, channel_bytes: int, config: Configuration) -> np.ndarray:
    """The lines (lines, width, bytes of whole atoms) that :func:`to_entries` has made entries of."""
    count, entry = entries.shape[0], config.cbuf_entry_bytes
    size = align(channel_bytes, config.memory_atom)
    whole, rest = divmod(size, entry)
    lines = np.empty((count, width, size), np.uint8)
    full = entries[:, : whole * width].reshape(count, whole, width, entry)
    lines[:, :, : whole * entry] = full.transpose(0, 2, 1, 3).reshape(count, width, whole * entry)
    if rest:
        columns = _columns_per_entry(rest // config.memory_atom, config)
        tail = entries[:, whole * width :, : columns * rest].reshape(count, -1, rest)
        lines[:, :, whole * entry :] = tail[:, :width]
    return lines


def _atoms_per_entry(config: Configuration) -> int:
    return config.cbuf_entry_bytes // config.memory_atom


def _columns_per_entry(rest: int, config: Configuration) -> int:
    """Columns whose last ``rest`` atoms share an entry: 4, 2, or 1 where they take more than half of it."""
    atoms = _atoms_per_entry(config)
    return atoms // rest if rest in (atoms // 4, atoms // 2) else 1


LARGEST_CUBE = 1 << 28
"""Elements of the largest cube that is computed: far above what networks have, below what fills a machine."""

# CSC has a field IN_PRECISION, too, which nothing reads; the driver firmware writes the processing precision there.
FIELDS_OF_CDMA_AND_CSC = (
    "D_MISC_CFG.DATA_REUSE",
    "D_MISC_CFG.WEIGHT_REUSE",
    "D_MISC_CFG.SKIP_DATA_RLS",
    "D_MISC_CFG.SKIP_WEIGHT_RLS",
    "D_DATAIN_FORMAT.DATAIN_FORMAT",
    "D_WEIGHT_FORMAT.WEIGHT_FORMAT",
    "D_BATCH_NUMBER.BATCHES",
    "D_BANK.DATA_BANK",
    "D_BANK.WEIGHT_BANK",
    "D_ENTRY_PER_SLICE.ENTRIES",
)
FIELDS_OF_CACC_AND_CSC = (
    "D_DATAOUT_SIZE_0.DATAOUT_WIDTH",
    "D_DATAOUT_SIZE_0.DATAOUT_HEIGHT",
    "D_DATAOUT_SIZE_1.DATAOUT_CHANNEL",
    "D_BATCH_NUMBER.BATCHES",
)


def check(groups: dict[str, RegisterGroup], settings: ConvolutionSettings, config: Configuration) -> None:
    """Raise ConfigError for what ``config`` lacks or no hardware can do, ScheduleError for a deadlock."""
    _check_configuration(settings, config)
    _check_agreement(groups)
    _check_conversion(settings)
    _check_sizes(settings, config)
    if settings.winograd:
        _check_winograd(settings)
    else:
        _check_windows(settings)
        if settings.image:
            check_extended_channels(settings.kernel.channels, config.mac_atomic_c, settings.post_extension)
        else:
            _check_slices(settings, config)
    _check_buffer(settings, config)
    _check_weights(settings, config)


def _check_configuration(settings: ConvolutionSettings, config: Configuration) -> None:
    """Raise ConfigError for features that the configuration lacks."""
    for precision in (settings.input_precision, settings.precision):
        config.require_precision(int(precision), "convolution: precision")
    for feature, wanted in (
        ("winograd", settings.winograd),
        ("weight_compression", settings.compressed),
        ("batch", settings.batches > 1),
    ):
        if wanted:
            config.require(feature, "convolution")


def _check_agreement(groups: dict[str, RegisterGroup]) -> None:
    """Raise ScheduleError where two units disagree: they deadlock."""
    csc = groups["CSC"]
    for unit in ("CDMA", "CMAC_A", "CMAC_B", "CACC"):
        for field in ("D_MISC_CFG.CONV_MODE", "D_MISC_CFG.PROC_PRECISION"):
            _same(groups[unit], csc, field)
    for field in FIELDS_OF_CDMA_AND_CSC:
        _same(groups["CDMA"], csc, field)
    for field in FIELDS_OF_CACC_AND_CSC:
        _same(groups["CACC"], csc, field)


def _same(group: RegisterGroup, csc: RegisterGroup, field: str) -> None:
    if group[field] != csc[field]:
        raise ScheduleError(f"deadlock: {group.unit}.{field} is {group[field]}, but CSC.{field} is {csc[field]}")


def _check_conversion(settings: ConvolutionSettings) -> None:
    """Input precisions that the converter cannot turn into the processing precision."""
    before, after = settings.input_precision, settings.precision
    if before is after:
        return
    names = f"input precision {before} and processing precision {after}"
    if before is Precision.FP16:
        raise ConfigError(f"{names}: fp16 data can only be processed as fp16")
    if not settings.converter.enabled:
        raise ConfigError(f"{names} differ, but the input converter (CDMA.D_CVT_CFG.CVT_EN) is off")
    if not settings.image and before.bytes != after.bytes:
        raise ConfigError(f"{names}: feature data cannot change their width, only images can")


def _check_sizes(settings: ConvolutionSettings, config: Configuration) -> None:
    """Numbers of batches, kernels and lines that do not exist, and cubes that no memory could hold."""
    out = settings.output
    if settings.kernels != out.channels:
        raise ScheduleError(
            f"deadlock: CSC.D_DATAOUT_SIZE_1 states {out.channels} output channels, "
            f"CSC.D_WEIGHT_SIZE_EXT_1 has {settings.kernels} kernels"
        )
    if settings.batches > (config.max_batch or 1):
        raise ConfigError(f"batches: must be at most {config.max_batch or 1} on {config.name}, got {settings.batches}")
    if settings.post_extension > 4:
        raise ConfigError("CSC.D_POST_Y_EXTENSION: must be 0, 1 or 2 (1, 2 or 4 lines), got 3")
    if settings.image and settings.batches > 1:
        raise ConfigError(
            "batches of image input: must be 1 (the hardware supports batches for feature data only), got "
            f"{settings.batches}"
        )
    if settings.image and settings.winograd:
        raise ConfigError("Winograd convolution: input must be feature data, got an image")
    elements = settings.batches * out.width * out.height * out.channels
    if elements > LARGEST_CUBE:
        raise ConfigError(
            f"the convolution's output {out} has {elements} elements: at most {LARGEST_CUBE} are computed"
        )


def _check_windows(settings: ConvolutionSettings) -> None:
    """Data, kernels, padding and output of a direct convolution must fit one another."""
    data, extended, kernel, pad = settings.data, settings.extended, settings.kernel, settings.fetch_padding
    if (data.width, data.channels) != (extended.width, extended.channels):
        raise ScheduleError(f"deadlock: CDMA fetches {data}, CSC.D_DATAIN_SIZE_EXT states {extended}")
    if settings.image:
        wrong = kernel.width != 1 or kernel.channels % extended.channels
    else:
        wrong = kernel.channels != extended.channels
    if wrong:
        raise ScheduleError(f"deadlock: kernels must fit the extended data {extended}, got {kernel}")
    rows, columns = padded_size(settings)
    width, height = pad.left + extended.width + pad.right, pad.top + extended.height + pad.bottom
    if columns > width or rows > height:
        raise ConfigError(
            f"input of the convolution: must be at least {columns}x{rows} (width x height) for its output "
            f"{settings.output}, got {width}x{height} with padding (CDMA.D_ZERO_PADDING)"
        )


def check_extended_channels(channels: int, block: int, post_extension: int) -> None:
    """Raise ConfigError where a MAC cell of ``block`` channels cannot take ``post_extension`` lines of an image's
    kernel at once."""
    if post_extension > 1 and channels > block // post_extension:
        raise ConfigError(
            f"extended channels: must be at most {block // post_extension} with a post extension of "
            f"{post_extension} lines (one MAC cell), got {channels}"
        )


def _check_buffer(settings: ConvolutionSettings, config: Configuration) -> None:
    """All lines of data, and the weights of a kernel group, must be in the convolution buffer at the same time.

    The sizes here are those of the elements alone, so nothing is refused that the hardware could take.
    """
    extended, kernel, element = settings.extended, settings.kernel, settings.precision.bytes
    data_banks, weight_banks = settings.banks
    width = extended.width + (settings.fetch_padding.left + settings.fetch_padding.right if settings.image else 0)
    data = settings.batches * width * extended.height * extended.channels * element
    group = min(config.mac_atomic_k // element, settings.kernels)
    weights = 0 if settings.compressed else group * kernel.width * kernel.height * kernel.channels * element
    if data_banks + weight_banks > config.cbuf_banks:
        raise ConfigError(
            f"CSC.D_BANK: must use at most {config.cbuf_banks} banks ({config.name}), got {data_banks} + {weight_banks}"
        )
    if settings.compressed and data_banks + weight_banks == config.cbuf_banks:
        raise ConfigError(
            f"CSC.D_BANK asks for {data_banks} + {weight_banks} banks, all that {config.name} has: the last one is the "
            "mask's of compressed weights (WMB)"
        )
    for what, size, banks in (("data", data, data_banks), (f"{group} kernels", weights, weight_banks)):
        if size > banks * config.cbuf_bank_bytes:
            raise ScheduleError(
                f"deadlock: {what} of {size} bytes do not fit the {banks} banks of "
                f"{config.cbuf_bank_bytes} bytes in the convolution buffer (D_BANK)"
            )


def _check_slices(settings: ConvolutionSettings, config: Configuration) -> None:
    """Lines as the C model insists on them (csc:659, cdma:1056, 1093, 1283); nv_full's only complains, and goes on."""
    size = settings.data
    entries = entries_per_slice(size.channels * settings.input_precision.bytes, size.width, config)
    if settings.entries_per_slice != entries:
        raise ConfigError(
            f"CSC.D_ENTRY_PER_SLICE: must be {entries} entries of {config.cbuf_entry_bytes} bytes (line of "
            f"{size.width} columns of {size.channels} channels on {config.name}), got {settings.entries_per_slice}"
        )
    if settings.fetched_lines > 1 and not settings.packed_lines:
        raise ConfigError(
            f"CDMA.D_FETCH_GRAIN asks for {settings.fetched_lines} lines at a time, but the lines do not follow each "
            "other without a gap (D_DAIN_MAP): only one at a time can be fetched"
        )
    single = settings.packed_cube and size.width == size.height == 1
    if settings.fetched_lines > size.height and not single and config.c_model_stops:
        raise ConfigError(
            f"CDMA.D_FETCH_GRAIN: must be at most {size.height} lines (input), got {settings.fetched_lines}"
        )


def _check_weights(settings: ConvolutionSettings, config: Configuration) -> None:
    """CDMA reports kernels by whole entries: all must be in those that D_WEIGHT_BYTES has (cdma:2087)."""
    entry, size = config.cbuf_entry_bytes, fetched_weight_bytes(settings, config)
    if not settings.compressed and size // entry * entry < align(settings.kernel_bytes, entry):
        raise ScheduleError(
            f"deadlock: D_WEIGHT_BYTES is {settings.weight_bytes}, the kernels take "
            f"{settings.kernel_bytes} bytes, which must be rounded up to whole entries of {entry}"
        )
    mask = ceil_div(min(config.mac_atomic_k // settings.precision.bytes, settings.kernels) * _mask_bits(settings), 8)
    if settings.keep_weights:
        mask = settings.mask_bytes
    if settings.compressed and mask > config.cbuf_bank_bytes:
        raise ScheduleError(
            f"deadlock: {mask} bytes of the mask of compressed weights (WMB) must be in the buffer "
            f"at once, their bank has {config.cbuf_bank_bytes}"
        )
    if settings.keep_weights and ceil_div(size, entry) > settings.banks[1] * config.cbuf_bank_entries:
        raise ScheduleError(
            f"kept weights (SKIP_WEIGHT_RLS): must fit {settings.banks[1]} banks of {config.cbuf_bank_bytes} "
            f"bytes, got {size} bytes"
        )


def _mask_bits(settings: ConvolutionSettings) -> int:
    """Bits of the mask for one kernel."""
    return settings.kernel_bytes // settings.precision.bytes // settings.kernels


def fetched_weight_bytes(settings: ConvolutionSettings, config: Configuration) -> int:
    """Bytes of weights that CDMA fetches: whole atoms; nv_full's register has no lower 7 bits."""
    size = settings.weight_bytes
    if config.weight_alignment > 1:
        return size // config.weight_alignment * config.weight_alignment
    return align(size, config.memory_atom)


def _check_winograd(settings: ConvolutionSettings) -> None:
    """Sizes of Winograd mode (cmod/cdma/NV_NVDLA_cdma.cpp:3110, cmod/csc/NV_NVDLA_csc.cpp:1985)."""
    data, padding, out, kernel = settings.data, settings.fetch_padding, settings.output, settings.kernel
    for name, total, stride in (
        ("width", padding.left + data.width + padding.right, settings.fetch_stride_x),
        ("height", padding.top + data.height + padding.bottom, settings.fetch_stride_y),
    ):
        if total % (4 * stride):
            raise ConfigError(
                f"Winograd convolution: padded {name}: must be a multiple of 4 * stride {stride}, got {total}"
            )
    if out.width % 4 or out.height % 4:
        raise ConfigError(f"Winograd convolution: width and height of the output: must be multiples of 4, got {out}")
    if (kernel.width, kernel.height) != (4, 4) or settings.extended.channels % 4:
        raise ConfigError(
            f"Winograd convolution: transformed kernels are {kernel}, they must be 4x4 with a multiple of 4 channels"
        )
    if kernel.channels != settings.extended.channels:
        raise ScheduleError(
            f"deadlock: kernels have {kernel.channels} channels, the extended data {settings.extended.channels}"
        )
    if out.width + 2 > settings.extended.width or out.height + 2 > settings.extended.height:
        raise ConfigError(f"Winograd convolution: output {out} needs more than the extended data {settings.extended}")
