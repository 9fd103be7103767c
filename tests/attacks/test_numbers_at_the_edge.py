"""Numbers of descriptors that no compiler writes: shifts beyond the width, scales that are no numbers, sums that would
wrap around. What can be computed is computed as the hardware would; the rest is refused."""

from __future__ import annotations

import struct
import warnings
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from support.attack_files import INPUT, OUTPUT, Op, network
from support.attack_files import filled as with_fields
from support.handmade import copy, pool

import nvdla
from nvdla.emulator.cpu import power, softmax
from nvdla.emulator.cpu.operation import FORMATS, CpuBuffer
from nvdla.loadable.descriptors.enums import EmuFormat, OpType

PAGE = 4096
VALUES = bytes(each & 0xFF for each in (-128, -127, -65, -1, 0, 1, 64, 127))


def outcome(op: Op, data: bytes = VALUES) -> list[bytes]:
    """The output's first atom, twice: through the firmware and from the plan."""
    runtime = nvdla.Runtime(network([op]), config="nv_small", abi="new", threads=1)
    inputs = [data.ljust(tensor.size, b"\0") for tensor in runtime.inputs]
    first, second = runtime.run_raw(inputs), runtime.run_raw(inputs)
    assert first == second
    return first


def refusal(op: Op) -> str:
    with pytest.raises(nvdla.NvdlaError) as caught:
        outcome(op)
    return str(caught.value)


def round_half_away(value: Fraction) -> int:
    magnitude = int(abs(value) + Fraction(1, 2))
    return magnitude if value >= 0 else -magnitude


@pytest.mark.parametrize("shift", [0, 1, 7, 8, 31, 32, 62, 63, 64, 65, 127, 128, 255])
def test_a_shift_beyond_the_converters_width_is_cut_to_it(shift):
    """D_CVT_SHIFT has 6 bits; the descriptor has 8."""
    output = outcome(Op(OpType.SDP, with_fields(copy, out_cvt__truncate=shift)))[0]
    signed = struct.unpack("8b", VALUES)
    wanted = [max(min(round_half_away(Fraction(each, 1 << (shift & 63))), 127), -128) for each in signed]
    assert list(struct.unpack("8b", output[:8])) == wanted


@pytest.mark.parametrize("shift", [0, 15, 31, 32, 63, 64, 127, 128, 255])
@pytest.mark.parametrize("field", ["x1_op__shift_value", "x1_op__truncate"])
def test_a_shift_of_a_stage_beyond_its_width_is_cut_to_it(field, shift):
    """The same results as with the six bits that the shifters have."""
    stage = {"x1_op__enable": 1, "x1_op__type": 3, "x1_op__mode": 0, "x1_op__mul_operand": 3, "x1_op__alu_operand": 5}

    def result(value: int) -> list[bytes] | str:
        op = Op(OpType.SDP, with_fields(copy, **stage, **{field: value}))
        try:
            return outcome(op)
        except nvdla.NvdlaError as error:
            return str(error)

    assert result(shift) == result(shift & 0x3F)


@pytest.mark.parametrize("make, op_type", [(copy, OpType.SDP), (pool, OpType.PDP)])
@pytest.mark.parametrize("cube", ["src_data", "dst_data"])
@pytest.mark.parametrize("field", ["offset", "line_stride", "surf_stride"])
def test_offsets_and_strides_do_not_wrap_around(make, op_type, cube, field):
    """The largest numbers that the fields hold, for cubes in which they count."""
    sizes = {f"{each}__{side}": 16 for each in ("src_data", "dst_data") for side in ("height", "channel")}
    largest = (1 << 64) - 8 if field == "offset" else (1 << 32) - 8
    said = refusal(Op(op_type, with_fields(make, **sizes, **{f"{cube}__{field}": largest})))
    assert cube in said or "region" in said or "memory" in said or "address bits" in said


@pytest.mark.parametrize("cube, index", [("src_data", INPUT), ("dst_data", OUTPUT)])
def test_the_last_byte_of_a_cube_counts_not_only_its_first(cube, index):
    """Two lines of which the second ends with the region fit; eight bytes more between them do not."""
    model = network([Op(OpType.SDP, copy((INPUT, 0), (OUTPUT, 0)))])
    address = model.address(model.tasks[0].address_list[index])
    room = PAGE - address.offset - 8
    lines = {f"{each}__height": 2 for each in ("src_data", "dst_data")}
    outcome(Op(OpType.SDP, with_fields(copy, **lines, **{f"{cube}__line_stride": room})))
    runtime = nvdla.Runtime(
        network([Op(OpType.SDP, with_fields(copy, **lines, **{f"{cube}__line_stride": room + 8}))]), strict=True
    )
    with pytest.raises(nvdla.NvdlaError) as caught:
        runtime.run_raw([bytes(each.size) for each in runtime.inputs])
    said = str(caught.value)
    assert f"{room + 16} bytes" in said
    assert "outside region" in said


NO_NUMBERS = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-45, 3.4e38, -3.4e38]


def cpu_buffer(kind: EmuFormat) -> CpuBuffer:
    dtype, atom = FORMATS[kind]
    surfaces = -(-20 * dtype.itemsize // atom)
    data = np.arange(surfaces * atom, dtype=np.uint8)
    return CpuBuffer("test", data, kind, dtype, atom, 1, 1, 20, atom, atom)


@pytest.mark.parametrize("scale", NO_NUMBERS)
@pytest.mark.parametrize("kind", list(FORMATS))
def test_scales_that_are_no_numbers_give_a_result_and_no_warning(kind, scale):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("power", "scale", "shift"):
            operation = SimpleNamespace(**{"power": 2.0, "scale": 0.5, "shift": 1.0, name: scale})
            power.run(operation, (1.0, 1.0), cpu_buffer(kind), cpu_buffer(kind))
        for scales in ((scale, 1.0), (1.0, scale), (scale, scale)):
            power.run(SimpleNamespace(power=1.0, scale=1.0, shift=0.0), scales, cpu_buffer(kind), cpu_buffer(kind))
            softmax.run(None, scales, cpu_buffer(kind), cpu_buffer(kind))


def test_two_operations_that_write_the_same_bytes_are_reported():
    """SDP and PDP, which nothing orders; each by itself is sound, so they run, and lint says what may go wrong."""
    from nvdla.checks.lint import lint

    ops = [Op(OpType.SDP, copy((INPUT, 0), (OUTPUT, 0))), Op(OpType.PDP, pool((INPUT, 64), (OUTPUT, 0)))]
    found = lint(network(ops), "nv_small", abi="new").findings
    said = {each.evidence for each in found if each.rule == "overlapping-surfaces-are-ordered"}
    assert said == {"dst_data overlaps dst_data of operation 0/1, and no dependency orders the two"}
