"""The registers of CDMA, CSC, CMAC and CACC as one checked description of a convolution."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from nvdla.errors import ConfigError, ScheduleError
from nvdla.hardware.configuration import Configuration, configurations
from nvdla.hardware.register_file import RegisterGroup
from nvdla.memory.address_space import Space

MAC_ATOM = 64
"""Elements that one MAC cell of nv_full multiplies and adds in one step (mac_atomic_c of the others)."""

LARGEST_WORK = 1 << 31
"""Elements a single operation may expand to: far above what 13-bit sizes need in practice, far below a crash."""

FIELDS_OF_CDMA_AND_CSC = (
    "D_MISC_CFG.IN_PRECISION",
    "D_MISC_CFG.DATA_REUSE",
    "D_MISC_CFG.WEIGHT_REUSE",
    "D_MISC_CFG.SKIP_DATA_RLS",
    "D_MISC_CFG.SKIP_WEIGHT_RLS",
    "D_DATAIN_FORMAT.DATAIN_FORMAT",
    "D_WEIGHT_FORMAT.WEIGHT_FORMAT",
    "D_BATCH_NUMBER.BATCHES",
    "D_BANK.DATA_BANK",
    "D_BANK.WEIGHT_BANK",
)
FIELDS_OF_CACC_AND_CSC = (
    "D_DATAOUT_SIZE_0.DATAOUT_WIDTH",
    "D_DATAOUT_SIZE_0.DATAOUT_HEIGHT",
    "D_DATAOUT_SIZE_1.DATAOUT_CHANNEL",
    "D_BATCH_NUMBER.BATCHES",
)


class Precision(IntEnum):
    """Values of IN_PRECISION and PROC_PRECISION."""

    INT8 = 0
    INT16 = 1
    FP16 = 2

    @property
    def bytes(self) -> int:
        return 1 if self is Precision.INT8 else 2

    @property
    def dtype(self) -> np.dtype:
        """Array type of elements; fp16 are kept as their bit patterns."""
        return np.dtype((np.int8, np.int16, np.uint16)[self])


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
class Converter:
    """The input converter of CDMA: ``(x - offset) * scale >> truncate`` with one offset for each of R, G, B, A."""

    enabled: bool
    offsets: tuple[int, int, int, int]
    scale: int
    truncate: int


@dataclass(frozen=True)
class ConvolutionSettings:
    """One convolution layer. Sizes are real sizes (register + 1), ``pad_value`` is a signed 16-bit number."""

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
    truncate: int
    pra_truncate: int
    nan_to_zero: bool
    converter: Converter
    fetch_stride_x: int
    fetch_stride_y: int
    fetch_padding: Padding

    @property
    def converts_nothing(self) -> bool:
        """True when the input converter is off, or cannot change an integer element."""
        converter = self.converter
        identity = (converter.offsets[0], converter.scale, converter.truncate) == (0, 1, 0)
        return not converter.enabled or (identity and self.input_precision is self.precision)

    @property
    def layout(self) -> tuple[bool, bool, tuple[int, int]]:
        """What must be the same for a layer to re-use what the one before left in the convolution buffer."""
        return self.winograd, self.image, self.banks


def decode(groups: dict[str, RegisterGroup], config: Configuration) -> ConvolutionSettings:
    """Read and check the settings. Raises ConfigError for what ``config`` lacks, ScheduleError for what hangs."""
    cdma, csc, cacc = groups["CDMA"], groups["CSC"], groups["CACC"]
    settings = ConvolutionSettings(
        winograd=bool(csc["D_MISC_CFG.CONV_MODE"]),
        image=bool(csc["D_DATAIN_FORMAT.DATAIN_FORMAT"]),
        input_precision=_precision(cdma, "IN_PRECISION"),
        precision=_precision(csc, "PROC_PRECISION"),
        batches=csc["D_BATCH_NUMBER.BATCHES"] + 1,
        data=Size(
            cdma["D_DATAIN_SIZE_0.DATAIN_WIDTH"] + 1,
            cdma["D_DATAIN_SIZE_0.DATAIN_HEIGHT"] + 1,
            cdma["D_DATAIN_SIZE_1.DATAIN_CHANNEL"] + 1,
        ),
        extended=Size(
            csc["D_DATAIN_SIZE_EXT_0.DATAIN_WIDTH_EXT"] + 1,
            csc["D_DATAIN_SIZE_EXT_0.DATAIN_HEIGHT_EXT"] + 1,
            csc["D_DATAIN_SIZE_EXT_1.DATAIN_CHANNEL_EXT"] + 1,
        ),
        output=Size(
            csc["D_DATAOUT_SIZE_0.DATAOUT_WIDTH"] + 1,
            csc["D_DATAOUT_SIZE_0.DATAOUT_HEIGHT"] + 1,
            csc["D_DATAOUT_SIZE_1.DATAOUT_CHANNEL"] + 1,
        ),
        kernel=Size(
            csc["D_WEIGHT_SIZE_EXT_0.WEIGHT_WIDTH_EXT"] + 1,
            csc["D_WEIGHT_SIZE_EXT_0.WEIGHT_HEIGHT_EXT"] + 1,
            csc["D_WEIGHT_SIZE_EXT_1.WEIGHT_CHANNEL_EXT"] + 1,
        ),
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
        truncate=cacc["D_CLIP_CFG.CLIP_TRUNCATE"],
        pra_truncate=csc["D_PRA_CFG.PRA_TRUNCATE"],
        nan_to_zero=bool(cdma["D_NAN_FLUSH_TO_ZERO.NAN_TO_ZERO"]),
        converter=_converter(cdma),
        fetch_stride_x=cdma["D_CONV_STRIDE.CONV_X_STRIDE"] + 1,
        fetch_stride_y=cdma["D_CONV_STRIDE.CONV_Y_STRIDE"] + 1,
        fetch_padding=Padding(
            cdma["D_ZERO_PADDING.PAD_LEFT"],
            cdma["D_ZERO_PADDING.PAD_RIGHT"],
            cdma["D_ZERO_PADDING.PAD_TOP"],
            cdma["D_ZERO_PADDING.PAD_BOTTOM"],
        ),
    )
    _check_configuration(settings, config)
    _check_agreement(groups)
    _check_conversion(settings)
    _check_geometry(settings, config)
    if settings.winograd:
        _check_winograd(settings)
    return settings


def data_space(cdma: RegisterGroup) -> Space:
    return Space.from_ram_type(cdma["D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE"])


def weight_space(cdma: RegisterGroup) -> Space:
    return Space.from_ram_type(cdma["D_WEIGHT_RAM_TYPE.WEIGHT_RAM_TYPE"])


def pad_element(settings: ConvolutionSettings) -> np.generic:
    """The padding value in the processing precision: int8 takes the low byte, fp16 the bits."""
    return np.array(settings.pad_value & 0xFFFF, np.uint16).astype(settings.precision.dtype)[()]


def _precision(group: RegisterGroup, field: str) -> Precision:
    value = group[f"D_MISC_CFG.{field}"]
    if value > Precision.FP16:
        raise ConfigError(f"{group.unit}.D_MISC_CFG.{field} is {value}: known are 0 (int8), 1 (int16), 2 (fp16)")
    return Precision(value)


def _converter(cdma: RegisterGroup) -> Converter:
    """Mean and CVT_OFFSET are alternatives, never added (cmod/cdma/NV_NVDLA_cdma.cpp:2493)."""
    if cdma["D_MEAN_FORMAT.MEAN_FORMAT"]:
        fields = (
            "D_MEAN_GLOBAL_0.MEAN_RY",
            "D_MEAN_GLOBAL_0.MEAN_GU",
            "D_MEAN_GLOBAL_1.MEAN_BV",
            "D_MEAN_GLOBAL_1.MEAN_AX",
        )
        offsets = tuple(cdma.signed(field) for field in fields)
    else:
        offsets = (cdma.signed("D_CVT_OFFSET.CVT_OFFSET"),) * 4
    return Converter(
        enabled=bool(cdma["D_CVT_CFG.CVT_EN"]),
        offsets=offsets,
        scale=cdma.signed("D_CVT_SCALE.CVT_SCALE"),
        truncate=cdma["D_CVT_CFG.CVT_TRUNCATE"],
    )


def _check_configuration(settings: ConvolutionSettings, config: Configuration) -> None:
    """What the configuration was not built with."""
    for precision in (settings.input_precision, settings.precision):
        name = precision.name.lower()
        if name not in config.precisions:
            able = [each.name for each in configurations().values() if name in each.precisions]
            raise ConfigError(f"{config.name} has no {name} convolution; configurations with it: {', '.join(able)}")
    for feature, wanted, what in (
        ("winograd", settings.winograd, "Winograd convolution"),
        ("weight_compression", settings.compressed, "weight decompression"),
        ("batch", settings.batches > 1, "hardware batches"),
    ):
        if wanted and not getattr(config, feature):
            able = [each.name for each in configurations().values() if getattr(each, feature)]
            raise ConfigError(f"{config.name} has no {what}; configurations with it: {', '.join(able)}")


def _check_agreement(groups: dict[str, RegisterGroup]) -> None:
    """Units that disagree wait for one another for ever."""
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
        raise ScheduleError(
            f"the convolution waits for ever: {group.unit}.{field} is {group[field]}, but CSC.{field} is {csc[field]}"
        )


def _check_conversion(settings: ConvolutionSettings) -> None:
    """Input precisions that the converter cannot turn into the processing precision."""
    before, after = settings.input_precision, settings.precision
    if before is after:
        return
    names = f"input precision {before.name.lower()} and processing precision {after.name.lower()}"
    if before is Precision.FP16:
        raise ConfigError(f"{names}: fp16 data can only be processed as fp16")
    if not settings.converter.enabled:
        raise ConfigError(f"{names} differ, but the input converter (CDMA.D_CVT_CFG.CVT_EN) is off")
    if not settings.image and before.bytes != after.bytes:
        raise ConfigError(f"{names}: feature data cannot change their width, only images can")


def _check_geometry(settings: ConvolutionSettings, config: Configuration) -> None:
    """Sizes that contradict one another, or that no memory could hold."""
    out, kernel = settings.output, settings.kernel
    if settings.kernels != out.channels:
        raise ScheduleError(
            f"the convolution waits for ever: CSC.D_DATAOUT_SIZE_1 asks for {out.channels} output channels, "
            f"CSC.D_WEIGHT_SIZE_EXT_1 has {settings.kernels} kernels"
        )
    if settings.batches > (config.max_batch or 1):
        raise ConfigError(f"{settings.batches} batches: {config.name} takes at most {config.max_batch or 1}")
    if settings.post_extension > 4:
        raise ConfigError("CSC.D_POST_Y_EXTENSION is 3: known are 0, 1 and 2 (1, 2 and 4 lines)")
    if settings.image and settings.batches > 1:
        raise ConfigError(f"{settings.batches} batches of image input: the hardware has batches for feature data only")
    if settings.image and settings.winograd:
        raise ConfigError("Winograd convolution of image input: the hardware has it for feature data only")
    largest = max(
        settings.batches * out.width * out.height * out.channels,
        settings.kernels * kernel.width * kernel.height * kernel.channels,
        settings.batches * settings.extended.height * settings.extended.width * settings.extended.channels,
    )
    if largest > LARGEST_WORK:
        raise ConfigError(f"the convolution of {settings.extended} to {out} is too large: {largest} elements")


def _check_winograd(settings: ConvolutionSettings) -> None:
    """Sizes of Winograd mode (cmod/cdma/NV_NVDLA_cdma.cpp:3110, cmod/csc/NV_NVDLA_csc.cpp:1985)."""
    data, padding, out, kernel = settings.data, settings.fetch_padding, settings.output, settings.kernel
    for name, total, stride in (
        ("width", padding.left + data.width + padding.right, settings.fetch_stride_x),
        ("height", padding.top + data.height + padding.bottom, settings.fetch_stride_y),
    ):
        if total % (4 * stride):
            raise ConfigError(f"Winograd convolution: padded {name} {total} is not a multiple of 4 * stride {stride}")
    if out.width % 4 or out.height % 4:
        raise ConfigError(f"Winograd convolution: output {out} is not a multiple of 4 in width and height")
    if (kernel.width, kernel.height) != (4, 4) or settings.extended.channels % 4:
        raise ConfigError(
            f"Winograd convolution: transformed kernels are {kernel}, they must be 4x4 with a multiple of 4 channels"
        )
    if kernel.channels != settings.extended.channels:
        raise ScheduleError(
            f"the convolution waits for ever: kernels have {kernel.channels} channels, "
            f"the extended data {settings.extended.channels}"
        )
    if out.width + 2 > settings.extended.width or out.height + 2 > settings.extended.height:
        raise ConfigError(f"Winograd convolution: output {out} needs more than the extended data {settings.extended}")
