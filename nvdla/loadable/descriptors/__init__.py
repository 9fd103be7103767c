"""Firmware descriptors: structures of both ABIs, their enums, tasks decoded into operations."""

from __future__ import annotations

from nvdla.loadable.descriptors.abi import ABIS, NEW, OLD, Abi, abi_named
from nvdla.loadable.descriptors.detect import detect
from nvdla.loadable.descriptors.fields import FieldView, fields, member, to_dict
from nvdla.loadable.descriptors.task import (
    DescriptorSource,
    DlaOperation,
    DlaTask,
    EmuOperation,
    EmuTask,
    LoadableSource,
    decode_tasks,
)

__all__ = [
    "ABIS",
    "NEW",
    "OLD",
    "Abi",
    "DescriptorSource",
    "DlaOperation",
    "DlaTask",
    "EmuOperation",
    "EmuTask",
    "FieldView",
    "LoadableSource",
    "abi_named",
    "decode_tasks",
    "detect",
    "fields",
    "member",
    "to_dict",
]
