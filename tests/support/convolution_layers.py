"""Convolution layers for tests: random settings, memory images in NVDLA's layouts, register writes, and the result
computed from the definition in plain Python."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from nvdla.emulator.hardware.configuration import configuration
from nvdla.emulator.hardware.convolution.checks import entries_per_slice
from nvdla.emulator.hardware.convolution.engine import Convolution
from nvdla.emulator.hardware.register_file import RegisterFile, register_map
from nvdla.emulator.memory.address_space import AddressSpace, Space

UNITS = ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC")
DATA, WEIGHTS, SECOND = 0x80000000, 0x90000000, 0xA0000000


class Bench:
    """Register files, memory and the convolution engine of one configuration, without the other engines."""

    def __init__(self, name: str, size: int = 1 << 18) -> None:
        self.config = configuration(name)
        self.memory = AddressSpace()
        for base in (DATA, WEIGHTS, SECOND):
            self.memory.map(f"region 0x{base:x}", Space.DRAM, base, size)
        self.registers = RegisterFile(register_map(self.config.register_map))
        self.warnings: list[str] = []
        machine = SimpleNamespace(config=self.config, memory=self.memory, registers=self.registers, hardware_only=False)
        machine.warn = lambda engine, text: self.warnings.append(text)
        self.engine = Convolution(machine)

    def write(self, **values: int) -> None:
        """``CDMA__D_BANK=3`` writes a register, ``CSC__D_BANK__DATA_BANK=3`` one field of it."""
        for key, value in values.items():
            unit, register, *field = key.split("__")
            group = self.registers.units[unit].current.values
            if field:
                bits = self.registers.map.register(unit, register).fields[field[0]]
                group[register] = group[register] & ~(bits.mask << bits.low) | (value & bits.mask) << bits.low
            else:
                group[register] = value & 0xFFFFFFFF

    def groups(self) -> dict:
        return {unit: self.registers.units[unit].current for unit in UNITS}

    def run(self) -> np.ndarray:
        return self.job().run(None)

    def job(self):
        """The job of what the registers say, at its place in the sequence of convolutions."""
        return self.engine.prepare(self.groups()).accounted()


def program(bench: Bench, **layer) -> None:
    """Write a direct convolution on feature data. Sizes are real sizes; ``padding`` is (left, top)."""
    width, height, channels = layer["data"]
    out_width, out_height, kernels = layer["output"]
    columns, rows, kernel_channels = layer["kernel"]
    precision = layer.get("precision", 0)
    element = 2 if precision else 1
    entry = bench.config.cbuf_entry_bytes
    both = {
        "D_MISC_CFG__IN_PRECISION": precision,
        "D_BATCH_NUMBER__BATCHES": layer.get("batches", 1) - 1,
    }
    for unit in ("CDMA", "CSC"):
        bench.write(**{f"{unit}__{key}": value for key, value in both.items()})
        bench.write(**{f"{unit}__D_BANK": 7 | 7 << 16})
        bench.write(**{f"{unit}__D_ENTRY_PER_SLICE": entries_per_slice(channels * element, width, bench.config) - 1})
    for unit in UNITS:
        bench.write(**{f"{unit}__D_MISC_CFG__PROC_PRECISION": precision})
    bench.write(
        CACC__D_BATCH_NUMBER__BATCHES=layer.get("batches", 1) - 1,
        CDMA__D_DATAIN_SIZE_0=width - 1 | height - 1 << 16,
        CDMA__D_DATAIN_SIZE_1=channels - 1,
        CDMA__D_DATAIN_SIZE_EXT_0=width - 1 | height - 1 << 16,
        CDMA__D_DAIN_RAM_TYPE=1,
        CDMA__D_DAIN_ADDR_LOW_0=layer.get("data_address", DATA),
        CDMA__D_LINE_STRIDE=layer["line_stride"],
        CDMA__D_SURF_STRIDE=layer["surface_stride"],
        CDMA__D_BATCH_STRIDE=layer.get("batch_stride", 0),
        CDMA__D_WEIGHT_RAM_TYPE=1,
        CDMA__D_WEIGHT_ADDR_LOW=WEIGHTS,
        CDMA__D_WEIGHT_SIZE_0=columns * rows * kernel_channels * element - 1,
        CDMA__D_WEIGHT_SIZE_1=kernels - 1,
        CDMA__D_WEIGHT_BYTES=-(-columns * rows * kernel_channels * element * kernels // entry) * entry,
        CDMA__D_ZERO_PADDING=layer["padding"][0] | 63 << 8 | layer["padding"][1] << 16 | 63 << 24,
        CSC__D_DATAIN_SIZE_EXT_0=width - 1 | height - 1 << 16,
        CSC__D_DATAIN_SIZE_EXT_1=channels - 1,
        CSC__D_WEIGHT_SIZE_EXT_0=columns - 1 | rows - 1 << 16,
        CSC__D_WEIGHT_SIZE_EXT_1=kernel_channels - 1 | kernels - 1 << 16,
        CSC__D_DATAOUT_SIZE_0=out_width - 1 | out_height - 1 << 16,
        CSC__D_DATAOUT_SIZE_1=kernels - 1,
        CSC__D_RELEASE=height - 1,
        CSC__D_CONV_STRIDE_EXT=layer["stride"][0] - 1 | layer["stride"][1] - 1 << 16,
        CSC__D_DILATION_EXT=layer["dilation"][0] - 1 | layer["dilation"][1] - 1 << 16,
        CSC__D_ZERO_PADDING=layer["padding"][0] | layer["padding"][1] << 16,
        CDMA__D_ZERO_PADDING_VALUE=layer.get("pad_value", 0) & 0xFFFF,
        CSC__D_ZERO_PADDING_VALUE=layer.get("pad_value", 0) & 0xFFFF,
        CACC__D_DATAOUT_SIZE_0=out_width - 1 | out_height - 1 << 16,
        CACC__D_DATAOUT_SIZE_1=kernels - 1,
        CACC__D_CLIP_CFG=layer.get("truncate", 0),
    )


def random_layer(seed: int, precision: int, atom: int) -> dict:
    """Sizes, strides, padding and dilation of a small direct convolution that is legal."""
    random = np.random.default_rng(seed)
    pick = lambda low, high: int(random.integers(low, high + 1))  # noqa: E731
    columns, rows = pick(1, 4), pick(1, 4)
    stride, dilation = (pick(1, 3), pick(1, 3)), (pick(1, 2), pick(1, 2))
    padding = pick(0, columns - 1), pick(0, rows - 1)
    spans = (columns - 1) * dilation[0] + 1, (rows - 1) * dilation[1] + 1
    output = pick(1, 5), pick(1, 4)
    sizes = [
        max(1, (output[axis] - 1) * stride[axis] + spans[axis] - padding[axis] - pick(0, spans[axis] - 1))
        for axis in range(2)
    ]
    channels, kernels = int(random.choice([1, 3, 8, 17, 64, 65, 130])), int(random.choice([1, 7, 16, 33, 40]))
    element = 2 if precision else 1
    line = (sizes[0] + pick(0, 2)) * atom
    surface = line * sizes[1] + pick(0, 2) * atom
    return {
        "precision": precision,
        "data": (*sizes, channels),
        "kernel": (columns, rows, channels),
        "output": (*output, kernels),
        "stride": stride,
        "dilation": dilation,
        "padding": padding,
        "pad_value": pick(-128, 127) if precision < 2 else 0x3C00 + pick(0, 99),
        "line_stride": line,
        "surface_stride": surface,
        "surfaces": -(-channels * element // atom),
    }


def store_cube(bench: Bench, cube: np.ndarray, layer: dict, address: int = DATA) -> None:
    """Write a cube (height, width, channels) in feature layout, element by element; unused channels are 0x55."""
    atom = bench.config.memory_atom
    per_atom = atom // cube.itemsize
    height, width, channels = cube.shape
    for y in range(height):
        for x in range(width):
            row = np.full(layer["surfaces"] * atom, 0x55, np.uint8)
            row[: channels * cube.itemsize] = cube[y, x].view(np.uint8)
            for s in range(layer["surfaces"]):
                at = address + s * layer["surface_stride"] + y * layer["line_stride"] + x * atom
                bench.memory.view(Space.DRAM, at, atom)[:] = row[s * atom : s * atom + per_atom * cube.itemsize]


def weight_bytes(weights: np.ndarray, group: int, block: int) -> bytes:
    """Kernels (kernels, rows, columns, channels) in the memory layout of a direct convolution."""
    kernels, rows, columns, channels = weights.shape
    result = b""
    for first in range(0, kernels, group):
        for channel in range(0, channels, block):
            for r in range(rows):
                for c in range(columns):
                    for k in range(first, min(first + group, kernels)):
                        result += weights[k, r, c, channel : channel + block].tobytes()
    return result


def window_element(cube: np.ndarray, layer: dict, at: tuple[int, int, int, int], pad: int, channel: int) -> int:
    """The element that output (y, x) multiplies with kernel element (row, column, channel)."""
    y, x, row, column = at
    height, width, _ = cube.shape
    line = y * layer["stride"][1] + row * layer["dilation"][1] - layer["padding"][1]
    position = x * layer["stride"][0] + column * layer["dilation"][0] - layer["padding"][0]
    inside = 0 <= line < height and 0 <= position < width
    return int(cube[line, position, channel]) if inside else pad


def image_weight_bytes(weights: np.ndarray, group: int, block: int, post_extension: int) -> bytes:
    """Kernels (kernels, rows, 1, extended channels) in the memory layout of an image convolution."""
    kernels, rows, _, channels = weights.shape
    result = b""
    for first in range(0, kernels, group):
        for channel in range(0, channels, block):
            for top in range(0, rows, post_extension):
                for k in range(first, min(first + group, kernels)):
                    for row in range(top, min(top + post_extension, rows)):
                        result += weights[k, row, 0, channel : channel + block].tobytes()
    return result


def winograd_weight_bytes(weights: np.ndarray, group: int) -> bytes:
    """Kernels (kernels, blocks of 4 channels, 4 rows, 4 columns, 4 channels) in the memory layout of Winograd mode."""
    kernels, blocks = weights.shape[:2]
    result = b""
    for first in range(0, kernels, group):
        for block in range(blocks):
            for k in range(first, min(first + group, kernels)):
                result += weights[k, block].tobytes()
    return result
