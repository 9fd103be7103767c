"""Fuzz target: a loadable through linker, firmware, scheduler and engines, within small limits."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from support.guards import guarded

import nvdla
import nvdla.emulator.cpu.power
import nvdla.emulator.cpu.softmax
import nvdla.emulator.execution.instances
import nvdla.emulator.hardware.bdma
import nvdla.emulator.hardware.cdp
import nvdla.emulator.hardware.convolution.engine
import nvdla.emulator.hardware.pdp
import nvdla.emulator.hardware.rubik
import nvdla.emulator.hardware.sdp.arithmetic
import nvdla.emulator.hardware.sdp.engine
import nvdla.runtime
from nvdla.limits import Limits

MEMORY_LIMIT = 4 << 20
LIMITS = Limits(operations=64, memory=MEMORY_LIMIT, multiplications=10**6, elements=10**6, cube=1 << 18)
_PATTERN = bytes(index % 251 for index in range(MEMORY_LIMIT + 8))


def one_input(data: bytes) -> None:
    """Runs again and again with equal results, or NvdlaError. The input's checksum says how.

    Three times (through the firmware, then from its plan), as a batch, or twice with guards around the regions, which
    hold other bytes the second time.
    """
    try:
        loadable = nvdla.load(data)
        way = (repeated, together, with_guards)[zlib.crc32(data) % 3]
        way(loadable)
    except nvdla.NvdlaError:
        return


def _runtime(loadable: nvdla.Loadable) -> nvdla.Runtime:
    return nvdla.Runtime(loadable, threads=1, limits=LIMITS)


def _surfaces(runtime: nvdla.Runtime, number: int) -> list[bytes]:
    return [_PATTERN[number : number + tensor.size] for tensor in runtime.inputs]


def repeated(loadable: nvdla.Loadable) -> None:
    runtime = _runtime(loadable)
    inputs = _surfaces(runtime, 0)
    first = runtime.run_raw(inputs)
    runtime.unpack(first)
    for name in ("second", "third"):
        if again(runtime.run_raw, inputs) != first:
            raise RuntimeError(f"the {name} run gave another result")


def together(loadable: nvdla.Loadable) -> None:
    alone, runtime = _runtime(loadable), _runtime(loadable)
    images = [_surfaces(runtime, number) for number in range(2)]
    try:
        results = [alone.run_raw(image) for image in images]
    except nvdla.NvdlaError:  # so must the batch
        runtime.run_many(images)
        raise RuntimeError("a batch ran although one of its images cannot") from None
    if again(runtime.run_many, images) != results:
        raise RuntimeError("a batch gave other results than its images alone")


def with_guards(loadable: nvdla.Loadable) -> None:
    with guarded() as guards:
        runtime = _runtime(loadable)
        inputs = _surfaces(runtime, 0)
        first = runtime.run_raw(inputs)
        guards.check()
        guards.fill(0xA5)
        if again(runtime.run_raw, inputs) != first:
            raise RuntimeError("a run depends on what lies outside its regions")
        guards.check()


def again(run: Callable, inputs: list) -> list:
    """A run of something that has run before: it has no reason to fail."""
    try:
        return run(inputs)
    except nvdla.NvdlaError as error:
        raise RuntimeError(f"what ran once cannot run again: {error}") from error
