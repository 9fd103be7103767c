"""The two descriptor ABIs, made from one declaration.

In April 2019 ``dla_data_cube`` got a 32-bit ``offset`` after ``address``, and the CPU tasks' structures changed with
it. ``OLD`` is the ABI with the 28-byte cube, ``NEW`` the one with 32 bytes. The container's version is 0.7.0 in both.
"""

from __future__ import annotations

from ctypes import Structure, c_int16, c_int64, c_uint16, c_uint32
from dataclasses import dataclass
from typing import Any

from nvdla.errors import DescriptorError
from nvdla.loadable.descriptors import structures
from nvdla.loadable.descriptors.structures import (
    Descriptor,
    DescriptorUnion,
    EmuNetworkDesc,
    constant,
    emu_structures,
    structure,
)
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document


@dataclass(frozen=True)
class Abi:
    """All structures of one ABI. Those that are the same in both are class attributes."""

    name: str
    title: str
    DataCube: type[Descriptor]
    ConvSurface: type[Descriptor]
    SdpSurface: type[Descriptor]
    PdpSurface: type[Descriptor]
    CdpSurface: type[Descriptor]
    RubikSurface: type[Descriptor]
    SurfaceContainer: Any
    EmuCommonOp: type[Descriptor]
    EmuPowerOp: type[Descriptor]
    EmuSoftmaxOp: type[Descriptor]
    EmuBuffer: type[Descriptor]
    EmuOperationContainer: Any
    EmuBuffers: type[Descriptor]

    NetworkDesc = structures.NetworkDesc
    Consumer = structures.Consumer
    CommonOpDesc = structures.CommonOpDesc
    RoiArrayDesc = structures.RoiArrayDesc
    RoiDesc = structures.RoiDesc
    CvtParam = structures.CvtParam
    BdmaTransfer = structures.BdmaTransfer
    BdmaSurface = structures.BdmaSurface
    BdmaOp = structures.BdmaOp
    ConvOp = structures.ConvOp
    SdpStage = structures.SdpStage
    SdpOp = structures.SdpOp
    PdpOp = structures.PdpOp
    CdpOp = structures.CdpOp
    RubikOp = structures.RubikOp
    LutParam = structures.LutParam
    OperationContainer = structures.OperationContainer
    StatContainer = structures.StatContainer
    EmuNetworkDesc = EmuNetworkDesc

    def __str__(self) -> str:
        return self.name


def _data_cube(with_offset: bool) -> Any:
    fields = (
        ("type", c_uint16),
        ("address", c_int16),
        *((("offset", c_uint32),) * with_offset),
        ("size", c_uint32),
        ("width", c_uint16),
        ("height", c_uint16),
        ("channel", c_uint16),
        ("reserved0", c_uint16),
        ("line_stride", c_uint32),
        ("surf_stride", c_uint32),
        ("plane_stride", c_uint32),
    )
    cube = structure("DataCube", "A surface: memory type, address index (-1 = none), size, strides in bytes.", *fields)
    if not with_offset:
        # So that users need not ask which ABI they have.
        cube.offset = constant(0)
    return cube


def _surfaces(cube: type[Structure]) -> Document:
    planes = (("offset_u", c_int64), ("in_line_uv_stride", c_uint32))
    members = {
        "ConvSurface": ("weight_data", "wmb_data", "wgs_data", "src_data", "dst_data"),
        "SdpSurface": ("src_data", "x1_data", "x2_data", "y_data", "dst_data"),
        "PdpSurface": ("src_data", "dst_data"),
        "CdpSurface": ("src_data", "dst_data"),
        "RubikSurface": ("src_data", "dst_data"),
    }
    unions = {}
    for name, cubes in members.items():
        fields = tuple((member, cube) for member in cubes) + (planes if name == "ConvSurface" else ())
        unions[name] = structure(name, f"Data cubes of one {name[:-7].upper()} operation.", *fields)
    unions["SurfaceContainer"] = structure(
        "SurfaceContainer",
        "One slot of the surface list; op_type of the dependency graph says which member holds.",
        ("bdma_surface", structures.BdmaSurface),
        *((f"{name[:-7].lower()}_surface", unions[name]) for name in members),
        base=DescriptorUnion,
    )
    return unions


def _make(name: str, title: str, new: bool) -> Abi:
    cube = _data_cube(new)
    return Abi(name, title, DataCube=cube, **_surfaces(cube), **emu_structures(new))


OLD = _make("old", "28-byte data cube (before April 2019)", new=False)
NEW = _make("new", "32-byte data cube (since April 2019)", new=True)
ABIS = {abi.name: abi for abi in (OLD, NEW)}


@by_annotations
def abi_named(name: str) -> Abi:
    """ "old" or "new" -> ABI; DescriptorError for anything else."""
    try:
        return ABIS[name]
    except KeyError:
        raise DescriptorError(f"descriptor ABI: must be 'old', 'new' or 'auto', got {name!r}") from None
