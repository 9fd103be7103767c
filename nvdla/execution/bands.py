"""Bands of rows of one surface as one job again.

A compiler cuts a convolution whose data do not fit the convolution buffer into bands of rows: operations with the same
weights, one after the other. Here nothing needs room in a buffer, and a layer as a whole has work for every thread.
:func:`merge_bands` puts bands together where that writes the same bytes: row for row a result comes from the same rows
of data, what is padding for a band is padding for the whole, and no band overwrites what another reads.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nvdla.execution.fused_convolution import FusedConvolution
from nvdla.execution.steps import Chain, Step
from nvdla.execution.validate import Validated
from nvdla.hardware.convolution.engine import ConvolutionJob
from nvdla.hardware.sdp.engine import SdpJob


def merge_bands(steps: Sequence[Step]) -> list[Step]:
    """The same steps with neighbours that are bands of one layer done by one job."""
    found: list[Step] = []
    at = 0
    while at < len(steps):
        bands = _bands(steps[at:])
        merged = _merged(bands) if len(bands) > 1 else None
        while merged is None and len(bands) > 1:
            bands = bands[:-1]
            merged = _merged(bands) if len(bands) > 1 else None
        found.append(steps[at] if merged is None else _instead(merged, steps[at : at + len(bands)]))
        at += 1 if merged is None else len(bands)
    return found


def _bands(steps: Sequence[Step]) -> list[FusedConvolution]:
    """The convolutions of as many steps as may be bands of the layer that the first is of."""
    bands: list[FusedConvolution] = []
    for step in steps:
        job = step.jobs[0] if isinstance(step, Chain) and len(step.jobs) == 1 else None
        if not isinstance(job, FusedConvolution) or job.destination is None:
            break
        if bands and not (bands[0].same_form(job) and _is_below(bands[-1].writes[0], job.writes[0])):
            break
        bands.append(job)
    return bands


def _is_below(view: np.ndarray, other: np.ndarray) -> bool:
    """True when the other view begins where this one's last row ends."""
    return bool(other.ctypes.data == view.ctypes.data + view.shape[1] * view.strides[1])


def _merged(bands: Sequence[FusedConvolution]) -> FusedConvolution | None:
    """One job for all, None where it would write other bytes."""
    sources = [_joined([band.conv.source.views[plane] for band in bands]) for plane in range(_planes(bands))]
    results, operands = _joined([band.writes[0] for band in bands]), _summands(bands)
    others = _joined(operands) if operands else None
    if results is None or (operands and others is None) or any(each is None for each in sources):
        return None
    views = [view for view, _ in filter(None, sources)]
    summand = None if others is None else others[0]
    if any(np.may_share_memory(results[0], view) for view in [*views, *([] if summand is None else [summand])]):
        return None
    starts = [rows for _, rows in filter(None, sources)]
    if any(rows != starts[0] for rows in starts) or not _rows_agree(bands, starts[0], results[1], views[0].shape[1]):
        return None
    if others is not None and others[1] != results[1]:
        return None
    conv, sdp = _whole_convolution(bands, views), _whole_sdp(bands, results[0], summand)
    return bands[0].whole(conv, sdp, tuple(part for band in bands for part in band.parts))


def _planes(bands: Sequence[FusedConvolution]) -> int:
    return min(len(band.conv.source.views) for band in bands)


def _summands(bands: Sequence[FusedConvolution]) -> list[np.ndarray]:
    """What X2 adds in each band, if anything: bands of one form either all add, or none does."""
    return [operand.view for operand in (band.sdp.sources[1] for band in bands) if operand is not None]


def _joined(views: Sequence[np.ndarray]) -> tuple[np.ndarray, list[int]] | None:
    """The cube that has the rows of all views (surfaces, rows, columns, atom) without a gap, in their order, and the
    row that each begins with; None where there is none."""
    first = views[0]
    line, end = first.strides[1], 0
    starts: list[int] = []
    for view in views:
        distance = view.ctypes.data - first.ctypes.data
        start = distance // max(line, 1)
        alike = (
            view.strides == first.strides and view.shape[::2] == first.shape[::2] and view.shape[3] == first.shape[3]
        )
        if not alike or line <= 0 or start * line != distance or not (starts[-1] if starts else 0) <= start <= end:
            return None
        starts.append(start)
        end = max(end, start + view.shape[1])
    if first.shape[0] > 1 and first.strides[0] < end * line:
        return None  # rows of one surface would lie over those of the next
    shape = (first.shape[0], end, *first.shape[2:])
    return as_strided(first, shape, first.strides), starts


def _rows_agree(bands: Sequence[FusedConvolution], starts: list[int], results: list[int], rows: int) -> bool:
    """True when each result is of the same rows as in its band, and what is padding there is padding of the whole."""
    above = bands[0].conv.settings.pad_top
    behind = 0
    for band, start, result in zip(bands, starts, results, strict=True):
        settings = band.conv.settings
        first = start - settings.pad_top
        last = first + band.lines - 1
        within = (settings.pad_top == 0 or start == 0) and (
            last < start + settings.data.height or start + settings.data.height == rows
        )
        if not within or result != behind or first != result * settings.stride_y - above:
            return False
        behind += settings.output.height
    return True


def _whole_convolution(bands: Sequence[FusedConvolution], views: list[np.ndarray]) -> ConvolutionJob:
    """The convolution of all bands: never run by itself, it says where data lie."""
    conv = copy.copy(bands[0].conv)
    height, rows = sum(band.conv.settings.output.height for band in bands), views[0].shape[1]
    settings = conv.settings
    conv.settings = replace(
        settings,
        data=replace(settings.data, height=rows),
        extended=replace(settings.extended, height=rows),
        output=replace(settings.output, height=height),
    )
    conv.source = copy.copy(conv.source)
    conv.source.settings, conv.source.views = conv.settings, views
    return conv


def _whole_sdp(bands: Sequence[FusedConvolution], result: np.ndarray, summand: np.ndarray | None) -> SdpJob:
    """The SDP of all bands."""
    sdp = copy.copy(bands[0].sdp)
    sdp.settings = replace(sdp.settings, height=result.shape[1])
    sdp.destinations, sdp.destination = [result], result
    operand = sdp.sources[1]
    if operand is not None and summand is not None:
        sdp.sources = [sdp.sources[0], replace(operand, view=summand), *sdp.sources[2:]]
    return sdp


def _instead(job: FusedConvolution, steps: Sequence[Step]) -> Chain:
    chains = [step for step in steps if isinstance(step, Chain)]
    references = tuple(each for chain in chains if isinstance(chain, Validated) for each in chain.references)
    return Validated((job,), *references) if references else Chain((job,))
