"""Rules about the features of the configuration."""

from __future__ import annotations

from collections.abc import Iterator

from nvdla.checks.lint.linter import Context, Said, rule
from nvdla.emulator.memory.surfaces import feature_atom
from nvdla.loadable.descriptors.enums import ConvMode, MemType, OpType, WeightFormat
from nvdla.loadable.enums import PIXEL_FORMATS, MemoryDomain, PixelFormat
from nvdla.util.precision import Precision

OTHER = "Compile for this configuration, or lint against the one it was compiled for."


@rule("error", OTHER, headline="precision that the configuration lacks")
def precisions_are_supported(context: Context) -> Iterator[Said]:
    """Every operation computes in a precision that the configuration has.

    int16 and fp16 exist only in nv_full. NVIDIA's compiler and firmware do not check it; the C model of the small
    configurations stops, crashes, or gives meaningless results. The rule includes Rubik, which moves elements by their
    size.
    """
    for subject in context.subjects:
        for value in dict.fromkeys(subject.precisions or ()):
            if value.known and (lack := context.config.refusal(value)):
                yield subject, f"computes in {value}: {lack}"


@rule("error", OTHER, headline="wrong atom size")
def atoms_have_the_size_of_the_memory_atom(context: Context) -> Iterator[Said]:
    """Bound feature tensors have atoms of the configuration's size: 8 bytes on nv_small, 32 on nv_large and nv_full.

    With the wrong atom every surface is read in the wrong order, without an error. Files of 2018 call every size
    FEATURE; the line stride decides there.
    """
    own = context.config.memory_atom
    for memory in (*context.loadable.inputs, *context.loadable.outputs):
        tensor = context.loadable.tensor(memory.tensor_desc_id)
        atom = feature_atom(tensor)
        packed = tensor.pixel_format == PixelFormat.FEATURE and tensor.line_stride == tensor.w * own
        if atom not in (None, own) and not packed:
            yield (
                f"tensor {tensor.name} has atoms of {atom} bytes ({tensor.pixel_format.name}), those of "
                f"{context.config.name} have {own}"
            )


@rule(
    "error",
    "Compile without Winograd (it is off in every named profile of NVIDIA's compiler).",
    headline="Winograd that the configuration lacks",
)
def winograd_is_supported(context: Context) -> Iterator[Said]:
    """Winograd convolution exists only in nv_full."""
    for subject in context.of_type(OpType.CONV):
        if subject.op.conv_mode == ConvMode.WINOGRAD and (lack := context.config.refusal("winograd")):
            yield subject, f"is a Winograd convolution: {lack}"


@rule("error", "Store the weights uncompressed.", headline="compressed weights without decompression")
def weight_decompression_is_supported(context: Context) -> Iterator[Said]:
    """Compressed weights need the decompression of nv_full."""
    for subject in context.of_type(OpType.CONV):
        if subject.op.weight_format == WeightFormat.COMPRESSED and (
            lack := context.config.refusal("weight_compression")
        ):
            yield subject, f"its weights are compressed: {lack}"


@rule(
    "error",
    "Run the images one after the other (as NVIDIA's compiler does).",
    headline="hardware batch that the configuration lacks",
)
def batches_are_supported(context: Context) -> Iterator[Said]:
    """A hardware batch needs a configuration with batches, and has at most its number of images."""
    for subject in context.of_type(OpType.CONV):
        most = (context.config.max_batch or 1) if context.config.batch else 1
        if subject.op.batch > most:
            yield subject, f"has a batch of {subject.op.batch} images, {context.config.name} takes at most {most}"


@rule(
    "error",
    "Place the surfaces so that nothing has to be copied, or compile for nv_full.",
    headline="BDMA that the configuration lacks",
)
def bdma_is_supported(context: Context) -> Iterator[Said]:
    """BDMA, which copies between memories, exists only in nv_full; the firmware of the others refuses it."""
    if lack := context.config.refusal("bdma"):
        for subject in context.of_type(OpType.BDMA):
            yield subject, f"is a BDMA operation: {lack}"


@rule(
    "error",
    "Replace the deconvolution (upsample, then convolve), or compile for nv_full.",
    headline="Rubik that the configuration lacks",
)
def rubik_is_supported(context: Context) -> Iterator[Said]:
    """Rubik, which reorders the result of a deconvolution, exists only in nv_full.

    NVIDIA's compiler also emits it for nv_small and nv_large, where the firmware refuses the task.
    """
    if lack := context.config.refusal("rubik"):
        for subject in context.of_type(OpType.RUBIK):
            yield subject, f"is a Rubik operation: {lack}"


@rule(
    "error",
    "Compute the function on the CPU, or compile for a configuration with lookup tables.",
    headline="lookup table that the configuration lacks",
)
def lookup_tables_are_supported(context: Context) -> Iterator[Said]:
    """Sigmoid, TanH and other functions of the SDP need its lookup tables, which nv_small and others lack."""
    for subject in context.of_type(OpType.SDP):
        if subject.op.lut_index >= 0 and (lack := context.config.refusal("sdp_lut")):
            yield subject, f"lut_index is {subject.op.lut_index}: {lack}"


@rule(
    "error",
    "Use X1 and X2 alone, or compile for a configuration with Y.",
    headline="Y stage that the configuration lacks",
)
def y_stage_is_supported(context: Context) -> Iterator[Said]:
    """The third stage of the SDP, Y (element-wise), does not exist in nv_small and other small configurations."""
    for subject in context.of_type(OpType.SDP):
        if subject.op.y_op.enable and (lack := context.config.refusal("sdp_ew_throughput")):
            yield subject, f"uses stage Y: {lack}"


@rule("error", "Compile without the CVSRAM pool.", headline="CVSRAM that the configuration lacks")
def cvsram_is_supported(context: Context) -> Iterator[Said]:
    """Memories and surfaces are in CVSRAM only if the configuration has its interface."""
    if not (lack := context.config.refusal("cvsram")):
        return
    for memory in context.loadable.memories:
        if memory.domain == MemoryDomain.SRAM:
            yield f"memory {memory.id} ({memory.size} bytes) is in CVSRAM: {lack}"
    for subject in context.subjects:
        for name, cube in subject.used_cubes() if subject.type != OpType.BDMA else ():
            if cube.type == MemType.CV:
                yield subject, f"{name} is in CVSRAM: {lack}"


@rule("error", "Use an 8-bit pixel format.", headline="image format that the configuration lacks")
def image_formats_are_supported(context: Context) -> Iterator[Said]:
    """Configurations with only int8 support image formats with 8-bit components; 16-bit ones crash their C model."""
    if context.config.precisions != (Precision.INT8,):
        return
    for subject in context.of_type(OpType.CONV):
        form = subject.op.data_format
        if form < len(PIXEL_FORMATS) and PIXEL_FORMATS[form].element_bytes == 2:
            yield subject, f"its input is an image in {PIXEL_FORMATS[form].name}, {context.config.name} takes 8 bits"
