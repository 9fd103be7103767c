"""Firmware descriptors: structures of both ABIs, their enums, tasks decoded into operations."""

from __future__ import annotations

from nvdla.descriptors.abi import ABIS, NEW, OLD, Abi, abi_named
from nvdla.descriptors.detect import detect
from nvdla.descriptors.fields import FieldView, fields, member, to_dict
from nvdla.descriptors.source import DescriptorSource, LoadableSource
from nvdla.descriptors.task import (
    DlaOperation,
    DlaTask,
    EmuOperation,
    EmuTask,
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
