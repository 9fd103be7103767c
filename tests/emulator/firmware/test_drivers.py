"""What the drivers refuse, each with the operation, the value and the limit."""

from __future__ import annotations

import pytest
from support.handmade import INPUT, OUTPUT, Op, copy, cube, network, pool
from support.small_operations import bdma, convolution

import nvdla
from nvdla.loadable.descriptors.enums import OpType


def refusal(op_type, fill, change, config="nv_small"):
    """The error when ``change(op, surface)`` is made to a sound operation."""

    def changed(op, surface):
        fill(op, surface)
        change(op, surface)

    loadable = network([Op(op_type, changed)], config, extra={"weights": bytes(64)})
    with pytest.raises(nvdla.NvdlaError) as caught:
        nvdla.Runtime(loadable, config=config, abi="new")
    assert str(caught.value).startswith(f"operation 0/0 ({op_type.name}): ")
    return caught.value


def setting(path, value):
    """A change of one field, "op.x1_op.mode" or "surface.src_data.type"."""

    def change(op, surface):
        first, *names, last = path.split(".")
        target = {"op": op, "surface": surface}[first]
        for name in names:
            target = getattr(target, name)
        setattr(target, last, value)

    return change


SDP_COPY = copy((INPUT, 0), (OUTPUT, 0))
PDP_COPY = pool((INPUT, 0), (OUTPUT, 0))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("op.src_precision", 3, "src_precision: must be 0 (int8), 1 (int16), 2 (fp16), got 3"),
        ("op.batch_num", 0, "batch_num: must be at least 1, got 0"),
        ("op.x1_op.mode", 3, "x1_op.mode: must be 0 (per layer), 1 (per kernel), 2 (per point), got 3"),
        ("op.x2_op.type", 9, "x2_op.type: must be "),
        ("op.y_op.act", 7, "y_op.act: must be "),
        ("op.lut_index", 1, "nv_small has no lookup tables in its SDP"),
        ("op.y_op.enable", 1, "nv_small has no Y (element-wise) stage in its SDP"),
        ("surface.src_data.type", 1, "nv_small has no CVSRAM"),
        ("surface.dst_data.type", 3, "dst_data has memory type 3"),
        ("surface.src_data.width", 0, "src_data width: must be 1 to 8192, got 0"),
        ("surface.src_data.channel", 9000, "src_data channel: must be 1 to 8192, got 9000"),
        ("surface.src_data.offset", 4, "src_data address: must be a multiple of"),
        ("surface.dst_data.address", -1, "dst_data: address index: must be 0 .. 9"),
    ],
)
def test_sdp_settings_that_cannot_run_are_refused(path, value, said):
    assert said in str(refusal(OpType.SDP, SDP_COPY, setting(path, value)))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("op.stride_x", 0, "stride_x: must be 1 to 8, got 0"),
        ("op.stride_y", 9, "stride_y: must be 1 to 8, got 9"),
        ("op.split_num", 65, "split_num: must be 1 to 64, got 65"),
        ("op.pool_width", 8, "pool_width (size - 1): must be 0 to 7, got 8"),
        ("op.pool_mode", 3, "pool_mode: must be 0 (average), 1 (max), 2 (min), got 3"),
        ("surface.dst_data.type", 2, "PDP writes to DRAM (0) or CVSRAM (1) only"),
    ],
)
def test_pdp_settings_that_cannot_run_are_refused(path, value, said):
    assert said in str(refusal(OpType.PDP, PDP_COPY, setting(path, value)))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("op.out_cvt.scale", 2, "out_cvt has scale 2 and offset 0; the accumulator only truncates"),
        ("op.data_format", 37, "data_format: must be 0 to 36 (feature), got 37"),
        ("op.conv_mode", 1, "nv_small has no Winograd mode (conv_mode is 1); configurations with it: nv_full"),
        ("op.weight_format", 1, "nv_small has no weight decompression"),
        ("op.dilation_x", 0, "dilation_x: must be at least 1, got 0"),
        ("surface.weight_data.offset", 3, "weight_data address: must be a multiple of"),
        ("surface.dst_data.channel", 0, "dst_data channel: must be 1 to 8192, got 0"),
    ],
)
def test_convolution_settings_that_cannot_run_are_refused(path, value, said):
    assert said in str(refusal(OpType.CONV, convolution, setting(path, value)))


def test_a_precision_that_the_configuration_lacks_names_those_that_have_it():
    error = refusal(OpType.SDP, SDP_COPY, setting("op.dst_precision", 2))
    assert isinstance(error, nvdla.ConfigError)
    assert "dst_precision: nv_small has no fp16; configurations with it: nv_full" in str(error)


def test_rubik_on_nv_small_names_the_configuration_that_has_it():
    def fill(op, surface):
        op.stride_x = op.stride_y = 1
        cube(surface.src_data, INPUT)
        cube(surface.dst_data, OUTPUT)

    error = refusal(OpType.RUBIK, fill, lambda op, surface: None)
    assert isinstance(error, nvdla.ConfigError)
    assert "nv_small has no Rubik (deconvolution needs it); configurations with it: nv_full" in str(error)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("line_size", 33, "line_size: must be a positive multiple of 32, got 33"),
        ("line_repeat", 0, "line_repeat: must be 1 to 8192, got 0"),
        ("source_line", 32, "source_line: must be at least 64"),
        ("destination_surface", 64, "destination_surface: must be at least 2 lines of 64 bytes, got 64"),
    ],
)
def test_bdma_transfers_that_cannot_run_are_refused(name, value, said):
    def change(op, surface):
        setattr(surface.transfers[0], name, value)

    assert said in str(refusal(OpType.BDMA, bdma(1), change, "nv_full"))


def test_cdp_settings_that_cannot_run_are_refused():
    def fill(op, surface):
        op.lut_index, op.local_size = -1, 5
        cube(surface.src_data, INPUT, atom=32)
        cube(surface.dst_data, OUTPUT, atom=32)

    assert "local_size: must be 3, 5, 7 or 9, got 4" in str(
        refusal(OpType.CDP, fill, setting("op.local_size", 4), "nv_full")
    )
    assert "CDP does not convert" in str(refusal(OpType.CDP, fill, setting("op.out_precision", 1), "nv_full"))


def test_the_run_budget_is_checked_before_anything_runs():
    from nvdla.limits import Limits

    loadable = network([Op(OpType.CONV, convolution)], extra={"weights": bytes(64)})
    with pytest.raises(nvdla.ScheduleError, match=r"multiplications: must be at most 63 .run budget., got 64"):
        nvdla.Runtime(loadable, config="nv_small", abi="new", limits=Limits(multiplications=63))
