"""Sizes and offsets of every structure, against figures worked out by hand from the firmware's header."""

from __future__ import annotations

import ctypes

import pytest

from nvdla.loadable.descriptors import NEW, OLD, Abi, structures
from nvdla.loadable.descriptors.structures import EmuNetworkDesc

#: sizes that are the same in both ABIs
SIZES = {
    "NetworkDesc": 40,
    "Consumer": 4,
    "CommonOpDesc": 36,
    "RoiArrayDesc": 8,
    "RoiDesc": 16,
    "CvtParam": 8,
    "BdmaTransfer": 32,
    "BdmaSurface": 4 + 20 * 32,
    "BdmaOp": 4,
    "ConvOp": 92,
    "LutOffset": 2,
    "FloatData": 4,
    "Slope": 4,
    "LutParam": 700,
    "SdpCvt": 16,
    "SdpStage": 32,
    "SdpOp": 4 + 8 + 4 + 4 + 3 * 32,
    "PdpOp": 24 + 7 * 4,
    "CdpOp": 24,
    "RubikOp": 4,
    "BdmaStat": 12,
    "ConvStat": 40,
    "SdpStat": 44,
    "PdpStat": 20,
    "CdpStat": 44,
    "RubikStat": 12,
    "OperationContainer": 116,
    "StatContainer": 44,
}

#: structure -> (old size, new size)
ABI_SIZES = {
    "DataCube": (28, 32),
    "ConvSurface": (152, 172),
    "SdpSurface": (140, 160),
    "PdpSurface": (56, 64),
    "CdpSurface": (56, 64),
    "RubikSurface": (56, 64),
    "SurfaceContainer": (644, 644),
    "EmuCommonOp": (1, 12),
    "EmuPowerOp": (16, 24),
    "EmuSoftmaxOp": (4, 16),
    "EmuOperationContainer": (16, 24),
    "EmuBuffer": (256, 256),
    "EmuBuffers": (512, 512),
}

#: structure -> {field: byte}, counted by hand
OFFSETS = {
    "NetworkDesc": {"op_head": 16, "num_rois": 28, "num_operations": 30, "num_luts": 32, "num_addresses": 34,
                    "input_layer": 36, "dynamic_roi": 38},
    "CommonOpDesc": {"index": 0, "roi_index": 2, "op_type": 3, "dependency_count": 4, "consumers": 8,
                     "fused_parent": 32},
    "Consumer": {"index": 0, "event": 2},
    "BdmaTransfer": {"source_address": 0, "destination_address": 2, "line_size": 4, "source_line": 12,
                     "surface_repeat": 20, "destination_surface": 28},
    "BdmaSurface": {"source_type": 0, "destination_type": 1, "num_transfers": 2, "transfers": 4},
    "ConvOp": {"entry_per_slice": 6, "data_format": 8, "fetch_grain": 10, "batch": 20, "data_bank": 22,
               "batch_stride": 24, "post_extension": 28, "release": 30, "input_width_csc": 32,
               "input_channel_csc": 36, "kernel_channel_csc": 42, "input_height_cmac": 46, "bytes_per_kernel": 48,
               "mean_ry": 52, "mean_format": 60, "conv_stride_x": 61, "pad_x_left": 63, "dilation_x": 67,
               "dilation_y": 68, "pra_truncate": 71, "in_precision": 72, "out_precision": 73, "pad_val": 74,
               "in_cvt": 76, "out_cvt": 84},
    "CvtParam": {"scale": 0, "truncate": 2, "enable": 3, "offset": 4},
    "SdpOp": {"lut_index": 2, "out_cvt": 4, "conv_mode": 12, "batch_num": 13, "batch_stride": 16, "x1_op": 20,
              "x2_op": 52, "y_op": 84},
    "SdpStage": {"enable": 0, "alu_type": 1, "type": 2, "mode": 3, "act": 4, "shift_value": 5, "truncate": 6,
                 "precision": 7, "alu_operand": 8, "mul_operand": 12, "cvt": 16},
    "PdpOp": {"partial_in_width_last": 4, "partial_width_last": 10, "split_num": 12, "pool_mode": 13,
              "pool_width": 14, "stride_x": 16, "pad_left": 18, "pad_bottom": 21, "precision": 22,
              "padding_value": 24},
    "CdpOp": {"in_precision": 0, "lut_index": 2, "in_cvt": 4, "out_cvt": 12, "local_size": 20, "bypass_sqsum": 21,
              "bypass_out_mul": 22},
    "RubikOp": {"mode": 0, "precision": 1, "stride_x": 2, "stride_y": 3},
    "LutParam": {"linear_exp_table": 0, "linear_only_table": 130, "linear_exp_offset": 644,
                 "linear_only_offset": 646, "linear_exp_start": 648, "linear_exp_end": 656, "linear_only_start": 664,
                 "linear_only_end": 672, "linear_exp_underflow_slope": 680, "linear_only_overflow_slope": 692,
                 "hybrid_priority": 696, "underflow_priority": 697, "overflow_priority": 698, "method": 699},
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_do_not_depend_on_the_abi(name: str) -> None:
    assert ctypes.sizeof(getattr(structures, name)) == SIZES[name]


@pytest.mark.parametrize("name", ABI_SIZES)
def test_sizes_of_each_abi(name: str) -> None:
    assert tuple(ctypes.sizeof(getattr(abi, name)) for abi in (OLD, NEW)) == ABI_SIZES[name]


@pytest.mark.parametrize("name", OFFSETS)
def test_offsets(name: str) -> None:
    structure = getattr(structures, name)
    assert {field: getattr(structure, field).offset for field in OFFSETS[name]} == OFFSETS[name]


def test_every_structure_is_covered() -> None:
    declared = {
        name
        for name, value in vars(structures).items()
        if isinstance(value, type) and issubclass(value, ctypes.Structure | ctypes.Union) and hasattr(value, "_fields_")
    }
    assert declared - {EmuNetworkDesc.__name__} == set(SIZES)


def test_the_new_cube_has_an_offset_after_its_address() -> None:
    assert {name: getattr(NEW.DataCube, name).offset for name, _ in NEW.DataCube._fields_} == {
        "type": 0, "address": 2, "offset": 4, "size": 8, "width": 12, "height": 14, "channel": 16, "reserved0": 18,
        "line_stride": 20, "surf_stride": 24, "plane_stride": 28,
    }  # fmt: skip
    assert {name: getattr(OLD.DataCube, name).offset for name, _ in OLD.DataCube._fields_} == {
        "type": 0, "address": 2, "size": 4, "width": 8, "height": 10, "channel": 12, "reserved0": 14,
        "line_stride": 16, "surf_stride": 20, "plane_stride": 24,
    }  # fmt: skip


@pytest.mark.parametrize(("abi", "cube"), [(OLD, 28), (NEW, 32)])
def test_cubes_follow_each_other_in_surfaces(abi: Abi, cube: int) -> None:
    names = ("weight_data", "wmb_data", "wgs_data", "src_data", "dst_data", "offset_u", "in_line_uv_stride")
    places = [0, cube, 2 * cube, 3 * cube, 4 * cube, 5 * cube, 5 * cube + 8]
    assert [getattr(abi.ConvSurface, name).offset for name in names] == places
    names = ("src_data", "x1_data", "x2_data", "y_data", "dst_data")
    assert [getattr(abi.SdpSurface, name).offset for name in names] == [i * cube for i in range(5)]
    for surface in (abi.PdpSurface, abi.CdpSurface, abi.RubikSurface):
        assert (surface.src_data.offset, surface.dst_data.offset) == (0, cube)


def test_an_old_cube_answers_for_the_offset_it_does_not_have() -> None:
    cube = OLD.DataCube()
    assert cube.offset == 0
    with pytest.raises(AttributeError):
        cube.offset = 4


def test_cpu_structures() -> None:
    assert ctypes.sizeof(EmuNetworkDesc) == 256
    assert EmuNetworkDesc.num_operations.offset == 4
    new, old = NEW.EmuBuffer, OLD.EmuBuffer
    assert (new.address_index_offset.offset, new.size.offset, new.line_stride.offset, new.surf_stride.offset) == (
        2, 6, 18, 22,
    )  # fmt: skip
    assert (old.size.offset, old.line_stride.offset, old.surf_stride.offset) == (2, 14, 18)
    assert old().address_index_offset == 0
    assert (NEW.EmuPowerOp.power.offset, OLD.EmuPowerOp.power.offset) == (12, 1)
    assert (NEW.EmuSoftmaxOp.axis.offset, OLD.EmuSoftmaxOp.axis.offset) == (12, 1)
    assert OLD.EmuCommonOp().input_scale_factor == 1.0


def test_fields_are_little_endian() -> None:
    cube = NEW.DataCube(type=1, address=-1, offset=0x01020304)
    assert bytes(cube)[:8] == b"\x01\x00\xff\xff\x04\x03\x02\x01"
