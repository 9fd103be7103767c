"""Which convolutions cannot run: what a configuration lacks, what waits for ever, what contradicts itself."""

from __future__ import annotations

from nvdla.errors import ConfigError, ScheduleError
from nvdla.hardware.configuration import Configuration
from nvdla.hardware.convolution.settings import ConvolutionSettings, padded_size
from nvdla.hardware.convolution.slices import entries_per_slice
from nvdla.hardware.register_file import RegisterGroup
from nvdla.precision import Precision
from nvdla.rounding import align, ceil_div

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
    """Raises ConfigError for what ``config`` lacks or no hardware can do, ScheduleError for what waits for ever."""
    _check_configuration(settings, config)
    _check_agreement(groups)
    _check_conversion(settings)
    _check_sizes(settings, config)
    if settings.winograd:
        _check_winograd(settings)
    else:
        _check_windows(settings)
        if not settings.image:
            _check_slices(settings, config)
    _check_buffer(settings, config)
    _check_weights(settings, config)


def _check_configuration(settings: ConvolutionSettings, config: Configuration) -> None:
    """What the configuration was not built with."""
    for precision in (settings.input_precision, settings.precision):
        config.require_precision(precision, "convolution: precision")
    for feature, wanted in (
        ("winograd", settings.winograd),
        ("weight_compression", settings.compressed),
        ("batch", settings.batches > 1),
    ):
        if wanted:
            config.require(feature, "convolution")


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


def _check_sizes(settings: ConvolutionSettings, config: Configuration) -> None:
    """Numbers of batches, kernels and lines that do not exist, and cubes that no memory could hold."""
    out = settings.output
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
    elements = settings.batches * out.width * out.height * out.channels
    if elements > LARGEST_CUBE:
        raise ConfigError(
            f"the convolution's output {out} has {elements} elements: at most {LARGEST_CUBE} are computed"
        )


def _check_windows(settings: ConvolutionSettings) -> None:
    """Data, kernels, padding and output of a direct convolution must fit one another."""
    data, extended, kernel, pad = settings.data, settings.extended, settings.kernel, settings.fetch_padding
    if (data.width, data.channels) != (extended.width, extended.channels):
        raise ScheduleError(
            f"the convolution waits for ever: CDMA fetches {data}, CSC.D_DATAIN_SIZE_EXT asks for {extended}"
        )
    if settings.image:
        wrong = kernel.width != 1 or kernel.channels % extended.channels
    else:
        wrong = kernel.channels != extended.channels
    if wrong:
        raise ScheduleError(f"the convolution waits for ever: kernels of {kernel} on data of {extended}")
    rows, columns = padded_size(settings)
    width, height = pad.left + extended.width + pad.right, pad.top + extended.height + pad.bottom
    if columns > width or rows > height:
        raise ConfigError(
            f"the convolution's output {settings.output} needs {columns}x{rows} of data (width x height), "
            f"with padding (CDMA.D_ZERO_PADDING) there are {width}x{height}"
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
            f"CSC.D_BANK asks for {data_banks} + {weight_banks} banks, {config.name} has {config.cbuf_banks}"
        )
    if settings.compressed and data_banks + weight_banks == config.cbuf_banks:
        raise ConfigError(
            f"CSC.D_BANK asks for {data_banks} + {weight_banks} banks, all that {config.name} has: the last one is the "
            "mask's of compressed weights (WMB)"
        )
    for what, size, banks in (("data", data, data_banks), (f"{group} kernels", weights, weight_banks)):
        if size > banks * config.cbuf_bank_bytes:
            raise ScheduleError(
                f"the convolution waits for ever: {what} of {size} bytes do not fit its {banks} banks of "
                f"{config.cbuf_bank_bytes} bytes in the convolution buffer (D_BANK)"
            )


def _check_slices(settings: ConvolutionSettings, config: Configuration) -> None:
    """Lines as the C model insists on them (csc:659, cdma:1056, 1093, 1283); nv_full's only complains, and goes on."""
    size = settings.data
    entries = entries_per_slice(size.channels * settings.input_precision.bytes, size.width, config)
    if settings.entries_per_slice != entries:
        raise ConfigError(
            f"CSC.D_ENTRY_PER_SLICE says {settings.entries_per_slice} entries, a line of {size.width} columns of "
            f"{size.channels} channels takes {entries} of {config.cbuf_entry_bytes} bytes on {config.name}"
        )
    if settings.fetched_lines > 1 and not settings.packed_lines:
        raise ConfigError(
            f"CDMA.D_FETCH_GRAIN asks for {settings.fetched_lines} lines at a time, but the lines do not follow each "
            "other without a gap (D_DAIN_MAP): only one at a time can be fetched"
        )
    single = settings.packed_cube and size.width == size.height == 1
    if settings.fetched_lines > size.height and not single and config.c_model_stops:
        raise ConfigError(
            f"CDMA.D_FETCH_GRAIN asks for {settings.fetched_lines} lines at a time, the input has {size.height}"
        )


def _check_weights(settings: ConvolutionSettings, config: Configuration) -> None:
    """CDMA reports kernels by whole entries: all must lie in those that D_WEIGHT_BYTES has (cdma:2087)."""
    entry, size = config.cbuf_entry_bytes, fetched_weight_bytes(settings, config)
    if not settings.compressed and size // entry * entry < align(settings.kernel_bytes, entry):
        raise ScheduleError(
            f"the convolution waits for ever: D_WEIGHT_BYTES is {settings.weight_bytes}, the kernels take "
            f"{settings.kernel_bytes} bytes, which must be rounded up to whole entries of {entry}"
        )
    mask = ceil_div(min(config.mac_atomic_k // settings.precision.bytes, settings.kernels) * _mask_bits(settings), 8)
    if settings.keep_weights:
        mask = settings.mask_bytes
    if settings.compressed and mask > config.cbuf_bank_bytes:
        raise ScheduleError(
            f"the convolution waits for ever: {mask} bytes of the mask of compressed weights (WMB) must be there at "
            f"once, their bank has {config.cbuf_bank_bytes}"
        )
    if settings.keep_weights and ceil_div(size, entry) > settings.banks[1] * config.cbuf_bank_entries:
        raise ScheduleError(
            f"the convolution cannot keep its weights (SKIP_WEIGHT_RLS): {size} bytes do not fit {settings.banks[1]} "
            f"banks of {config.cbuf_bank_bytes}"
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
