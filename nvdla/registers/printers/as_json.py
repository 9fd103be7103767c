"""JSON: every step with the names of its register and fields."""

from __future__ import annotations

from collections.abc import Iterator

from nvdla.emulator.memory.surfaces import FeatureLayout
from nvdla.registers.recording import Export, Printer
from nvdla.registers.register_program import Await, BoundTensor, CpuCube, Flushed, Mark, Step, Write
from nvdla.util.escaping import Document, Json, json_text


def write(export: Export) -> None:
    """Write the register program in this format. Raises FormatError where the format cannot express it."""
    program = export.register_program
    document = {
        "format": "nvdla-register-program",
        "version": 1,
        "name": program.name,
        "config": program.config.name,
        "serial": program.serial,
        "memories": [
            {"space": space.value, "base": export.bases[space], "size": size} for space, size in program.sizes.items()
        ],
        "segments": [
            {"space": segment.space.value, "offset": segment.offset, "size": segment.size}
            for segment in program.segments
        ],
        "inputs": [_tensor(tensor) for tensor in program.inputs],
        "outputs": [_tensor(tensor) for tensor in program.outputs],
    }
    export.save(f"{export.name}.json", _text(export, document))


def _text(export: Export, document: Document) -> Iterator[str]:
    """Yield the document, one line per step."""
    yield json_text(document, indent=1).removesuffix("\n}") + ',\n "steps": [\n  '
    for number, step in enumerate(export.register_program.steps):
        yield (",\n  " if number else "") + json_text(_step(export, step))
    yield "\n ]\n}\n"


def _tensor(tensor: BoundTensor) -> Document:
    return {
        "name": tensor.name,
        "space": tensor.space.value,
        "offset": tensor.offset,
        "size": tensor.size,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "strides": list(tensor.strides),
        "layout": _layout_name(tensor),
        "scale": tensor.scale,
        "zero_point": tensor.zero_point,
    }


def _layout_name(tensor: BoundTensor) -> str | None:
    """The layout as 'nvdla tensor' names it."""
    if isinstance(tensor.layout, FeatureLayout):
        return f"feature-x{tensor.layout.atom}"
    return None if tensor.layout is None else tensor.layout.format.name


def _step(export: Export, step: Step) -> Document:
    if isinstance(step, Write):
        return _write(export, step)
    if isinstance(step, Await):
        causes = [{"cause": cause, "group": group} for cause, group in step.causes()]
        return {"step": "await", "interrupts": step.interrupts, "causes": causes}
    if isinstance(step, Flushed):
        return {"step": "flushed", "register": str(step.register), "address": export.address(step.register, False)}
    if isinstance(step, Mark):
        return {
            "step": "mark",
            "what": step.what,
            "operation": f"{step.task}/{step.index}",
            "engine": step.engine,
            "group": step.group,
        }
    return {
        "step": "cpu",
        "operation": f"{step.task}/{step.index}",
        "kind": step.kind,
        "source": _cube(step.source),
        "destination": _cube(step.destination),
        "input_scale": step.input_scale,
        "output_scale": step.output_scale,
        "shift": step.shift,
        "scale": step.scale,
        "power": step.power,
    }


def _write(export: Export, step: Write) -> dict[str, Json]:
    value = export.value(step)
    fields = {field.name: value >> field.low & field.mask for field in step.register.fields.values()}
    row: Document = {
        "step": "write",
        "register": str(step.register),
        "address": export.address(step.register, False),
        "value": value,
        "fields": fields,
    }
    if step.space is not None:
        row |= {"space": step.space.value, "offset": step.value, "half": "high" if step.high else "low"}
    return row


def _cube(cube: CpuCube) -> dict[str, Json]:
    return {
        "space": cube.space.value,
        "offset": cube.offset,
        "size": cube.size,
        "element": "fp16" if cube.half else "int8",
        "atom": cube.atom,
        "shape": [cube.channels, cube.height, cube.width],
        "line_stride": cube.line_stride,
        "surface_stride": cube.surface_stride,
    }


PRINTERS = (
    Printer(
        "json",
        "every step with the names of registers and fields, and the memory layout",
        write,
        options=("csb_base", "word_addresses"),
    ),
)
