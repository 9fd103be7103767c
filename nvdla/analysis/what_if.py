"""What would help a layer: the cycle model is asked again with one of its terms changed.

Nothing is said that the model did not compute: each change is a run of the model on the layer as it is, or as it would
be built for the change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nvdla.analysis.alternatives import alternatives
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.cycles.queue import queue_cycles
from nvdla.analysis.layer_forms import MOST_COMPONENTS, LoweredLayer, other_forms, takes_images
from nvdla.analysis.study import Study
from nvdla.hardware.configuration import Configuration
from nvdla.rounding import align, ceil_div

WORTH = 0.01
"""The share of the cycles that a change must save to be named."""
IMAGES = 4
LINE_ALIGNMENT = 32
"""Bytes that a line of an image is a multiple of."""


def changes(study: Study, layer: LoweredLayer, cycles: int) -> list[dict[str, Any]]:
    """Changes that save at least :data:`WORTH` of ``cycles``, those that save most first."""
    plain = [*_hardware(study, layer), *_forms(study, layer), *_image_input(study, layer)]
    tried = [(what, each, cycles, False) for what, each in plain]
    tried += [(what, each, before, True) for what, each, before in _images(study, layer)]
    rows = [
        {"change": what, "cycles": each, "before": before, "saves": 1 - each / before, "per_image": per_image}
        for what, each, before, per_image in tried
        if each < before * (1 - WORTH)
    ]
    return sorted(rows, key=lambda row: -row["saves"])


Tried = tuple[str, int]


def _hardware(study: Study, layer: LoweredLayer) -> Iterator[Tried]:
    """The layer as it is on other hardware. More kernels at a time are not tried: the model knows arrays that make an
    atom of results at a time."""
    config, memory = study.config, study.memory
    bus = config.dram_width_bits / 8
    rate = memory.bytes_per_cycle
    if rate is not None and rate < bus:
        what, wide = f"twice the bandwidth ({2 * rate:g} bytes a cycle)", config
    else:
        what, wide = f"a bus twice as wide ({2 * bus:g} bytes a cycle)", replace(config, dram_width_bits=int(16 * bus))
    faster_memory = replace(memory, bytes_per_cycle=2 * rate if rate is not None else None)
    yield what, _again(layer, wide, faster_memory)
    latency = memory.latency // 2
    yield f"half the memory's latency ({latency} cycles)", _again(layer, config, replace(memory, latency=latency))
    channels = 2 * config.mac_atomic_c
    yield f"MAC cells of {channels} channels", _again(layer, replace(config, mac_atomic_c=channels), memory)
    x, y = (2 * (throughput or 1) for throughput in (config.sdp_bs_throughput, config.sdp_ew_throughput))
    faster = replace(config, sdp_bs_throughput=x, sdp_ew_throughput=y)
    yield "an SDP twice as fast", _again(layer, faster, memory)
    if layer.chains[0].pdp:
        double = replace(config, pdp_throughput=2 * (config.pdp_throughput or 1))
        yield "a PDP twice as fast", _again(layer, double, memory)


def _again(layer: LoweredLayer, config: Configuration, memory: Memory) -> int:
    return queue_cycles(layer.chains, config, memory, element_bytes=layer.geometry.element_bytes)


def _forms(study: Study, layer: LoweredLayer) -> Iterator[Tried]:
    """Other forms on this hardware, and with a larger buffer."""
    here = other_forms(layer, study)
    if here:
        yield here[0].words, here[0].cycles
    larger = replace(study.config, cbuf_banks=2 * study.config.cbuf_banks)
    there = other_forms(layer, study, larger)
    if there and (not here or there[0].cycles < here[0].cycles):
        yield f"a buffer of {larger.cbuf_banks} banks ({there[0].words})", there[0].cycles


def _images(study: Study, layer: LoweredLayer) -> Iterator[tuple[str, int, int]]:
    """Images one behind the other, with the weights kept and with them fetched anew: cycles of an image."""
    shape, whole = layer.geometry.shape, layer.geometry.whole
    fits = shape.weight_bytes <= shape.weight_banks * study.config.cbuf_bank_bytes
    if len(layer.chains) > 1 or not shape.weight_bytes or not fits or shape.batch > 1:
        return
    kept = replace(whole, conv=replace(shape, weight_bytes=0))
    size = layer.geometry.element_bytes
    anew, once = (
        ceil_div(queue_cycles([whole, *[each] * (IMAGES - 1)], study.config, study.memory, element_bytes=size), IMAGES)
        for each in (whole, kept)
    )
    yield f"weights kept for {IMAGES} images one behind the other", once, anew


def _image_input(study: Study, layer: LoweredLayer) -> Iterator[Tried]:
    """Pixels of 1 or 4 components: the columns of a kernel's row are channels, and 2 or 4 rows share a pass."""
    if not takes_images(layer):
        return
    geometry, shape, config = layer.geometry, layer.geometry.shape, study.config
    components = 1 if geometry.source[0] == 1 else MOST_COMPONENTS
    channels, rows = shape.kernel_width * components, shape.kernel_height
    shared = [count for count in (4, 2) if channels * count <= config.mac_atomic_c and rows > count // 2]
    line = align(geometry.source[2] * components * geometry.element_bytes, LINE_ALIGNMENT)
    conv = replace(
        shape,
        kernel_width=1,
        kernel_channels=channels,
        post_extension=shared[0] if shared else 1,
        by_line=True,
        data_bytes=geometry.source[1] * line,
        weight_bytes=shape.weight_bytes * components // geometry.source[0],
        entries_per_slice=ceil_div(line, config.cbuf_entry_bytes),
    )
    image = replace(geometry, whole=replace(geometry.whole, conv=conv), line=conv.entries_per_slice)
    found = alternatives(image, config, study.memory)
    if found:
        yield f"an image as the input ({found[0].words})", found[0].cycles
