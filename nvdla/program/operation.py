"""Operations of a program: keys, dependencies, names of their settings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from ctypes import Structure
from dataclasses import dataclass, field
from functools import cached_property

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import counted, printable
from nvdla.loadable.descriptors.enums import (
    Activation,
    ConvMode,
    DataFormat,
    Event,
    MemType,
    OpType,
    PoolMode,
    RubikMode,
    SdpAlu,
    SdpMode,
    SdpType,
)
from nvdla.loadable.descriptors.meaning import precisions_of, reads_operands
from nvdla.loadable.descriptors.structures import Descriptor
from nvdla.loadable.descriptors.task import DlaOperation, DlaTask, EmuOperation, EmuTask
from nvdla.program.accesses import STAGES, Access, AccessFinder, Shape
from nvdla.util.escaping import table
from nvdla.util.precision import Precision
from nvdla.util.rounding import ceil_div, is_digits


def _convolution(operation: DlaOperation) -> str:
    op, surface = operation.op, operation.surface
    width, channels, pixel = op.kernel_width_csc, op.kernel_channel_csc, surface.src_data.channel
    if op.data_format != DataFormat.FEATURE and pixel and channels % pixel == 0:
        width, channels = width * (channels // pixel), pixel  # columns and channels of an image are one axis
    words = [
        f"{counted(surface.dst_data.channel, 'kernel')} {width}x{op.kernel_height_csc}x{channels}",
        f"stride {op.conv_stride_x},{op.conv_stride_y}",
    ]
    padding = (op.pad_x_left, op.pad_x_right, op.pad_y_top, op.pad_y_bottom)
    if any(padding):
        words.append("pad left,right,top,bottom " + ",".join(map(str, padding)))
    if (op.dilation_x, op.dilation_y) != (1, 1):
        words.append(f"dilation {op.dilation_x},{op.dilation_y}")
    if op.conv_mode == ConvMode.WINOGRAD:
        words.append("winograd")
    if op.data_format != DataFormat.FEATURE:
        words.append(f"image {DataFormat(op.data_format).name}")
    words += [name for name in ("data_reuse", "weight_reuse", "weight_format") if getattr(op, name)]
    return ", ".join(words).replace("weight_format", "compressed weights").replace("_", " ")


def _sdp(operation: DlaOperation) -> str:
    op = operation.op
    stages = [_sdp_stage(name, getattr(op, f"{name}_op")) for name in ("x1", "x2", "y")]
    convert = op.out_cvt
    if convert.enable or convert.scale not in (0, 1) or convert.truncate:
        stages.append(f"out (x - {convert.offset}) * {convert.scale} >> {convert.truncate}")
    return "; ".join(stage for stage in stages if stage) or "copy"


def _sdp_stage(name: str, stage: Structure) -> str:
    if not stage.enable:
        return ""
    words = {
        SdpType.MUL: ["mul"],
        SdpType.ADD: [SdpAlu(stage.alu_type).name.lower()],
        SdpType.BOTH: [SdpAlu(stage.alu_type).name.lower(), "mul"],
    }.get(stage.type, [])
    if words:
        words.append(SdpMode(stage.mode).name.lower().replace("_", " "))
    if stage.act != Activation.NONE:
        words.append(Activation(stage.act).name.lower())
    return f"{name.upper()} {' '.join(words)}" if words else ""


def _pdp(operation: DlaOperation) -> str:
    op = operation.op
    padding = (op.pad_left, op.pad_right, op.pad_top, op.pad_bottom)
    text = f"{PoolMode(op.pool_mode).name.lower()} {op.pool_width + 1}x{op.pool_height + 1}"
    text += f", stride {op.stride_x},{op.stride_y}"
    if any(padding):
        text += ", pad left,right,top,bottom " + ",".join(map(str, padding))
    return text + (f", width split in {op.split_num}" if op.split_num > 1 else "")


def _cdp(operation: DlaOperation) -> str:
    if operation.op.bypass_sqsum and operation.op.bypass_out_mul:
        return "lookup table"
    return f"normalize over {operation.op.local_size} channels"


def _rubik(operation: DlaOperation) -> str:
    op = operation.op
    return f"{RubikMode(op.mode).name.lower()}, stride {op.stride_x},{op.stride_y}"


def _bdma(operation: DlaOperation) -> str:
    return f"{operation.surface.num_transfers} transfers"


DESCRIBE: dict[OpType, Callable[[DlaOperation], str]] = {
    OpType.BDMA: _bdma,
    OpType.CONV: _convolution,
    OpType.SDP: _sdp,
    OpType.PDP: _pdp,
    OpType.CDP: _cdp,
    OpType.RUBIK: _rubik,
}


def describe(operation: DlaOperation | EmuOperation) -> str:
    """An operation in words: "20 kernels 5 x 5 x 1, stride 1,1"."""
    if isinstance(operation, EmuOperation):
        return operation.op_type.name.lower()
    return DESCRIBE[operation.op_type](operation)


#: (task, region of interest, index in the operation list)
Key = tuple[int, int, int]


@dataclass(frozen=True)
class Dependency:
    """Operation that waits for an event of another operation.

    Attributes:
        target: Key of the operation that waits.
        type: Type of the operation that waits.
        event: Name of the event.
        on_the_fly: Whether ``target`` forwards its result to the other operation on the fly.
    """

    target: Key
    type: OpType
    event: str
    on_the_fly: bool = False


class Keyed:
    """Structures of one operation of one region of interest: ``key`` is (task, region of interest, index)."""

    key: Key

    @property
    def task(self) -> int:
        """The id of its task."""
        return self.key[0]

    @property
    def roi(self) -> int:
        """Its region of interest."""
        return self.key[1]

    @property
    def index(self) -> int:
        """Its place in the operation list."""
        return self.key[2]


@dataclass(frozen=True, repr=False)
class Operation(Keyed):
    """One operation of one region of interest.

    ``type``: its engine's number, None for a CPU operation; ``descriptors``: its structures (``op``, ``surface``,
    ``common``, or those of a CPU operation); ``decoded``: the task's lists; ``layer``: the name of the layer that it
    belongs to; ``queue``: its place in its engine's queue, -1 when the queue does not reach it.
    """

    key: Key
    type: OpType | None
    layer: str | None
    queue: int
    config: Configuration = field(repr=False)
    decoded: DlaTask | EmuTask = field(repr=False)
    descriptors: DlaOperation | EmuOperation = field(repr=False)
    finder: AccessFinder = field(repr=False)

    @property
    def engine(self) -> str:
        """Name of the engine: "bdma", "conv", "sdp", "pdp", "cdp", "rubik" or "cpu"."""
        return "cpu" if self.type is None else self.type.name.lower()

    @property
    def label(self) -> str:
        """Task and operation, "0/12"; with the region of interest if it is not the first, "0/12#1"."""
        return f"{self.task}/{self.index}" + (f"#{self.roi}" if self.roi else "")

    @property
    def title(self) -> str:
        """Title of the operation in drawings: "CONV 0/3 conv2"."""
        return f"{self.engine.upper()} {self.label}" + (f" {short_layer(self.layer)}" if self.layer else "")

    def __repr__(self) -> str:
        """One line: "<Operation CONV 0/3 conv2: 16 kernels 5 x 5 x 6, stride 1,1>"."""
        return printable(f"<Operation {self.title}: {self.what}>")

    def _repr_html_(self) -> str:
        """Inputs and outputs as HTML, for notebooks."""
        rows = [
            {
                "": "writes" if access.writes else "reads",
                "what": access.role,
                "memory": access.memory,
                "from byte": access.offset,
                "bytes": access.footprint.traffic,
                "shape": access.shape,
            }
            for access in self.accesses
        ]
        return table(f"{self.title}: {self.what} ({self.precision or 'copies bytes'})", rows)

    # ---- descriptors

    @property
    def op(self) -> Descriptor:
        """ConvOp, SdpOp ... (:mod:`nvdla.loadable.descriptors`)."""
        return self.descriptors.op

    @property
    def surface(self) -> Descriptor:
        """ConvSurface, SdpSurface ...; a CPU operation has none."""
        return self.descriptors.surface  # type: ignore[union-attr]

    @property
    def common(self) -> Descriptor:
        """The operation's node of the dependency graph (CommonOpDesc)."""
        return self.descriptors.common  # type: ignore[union-attr]

    @property
    def lut(self) -> Descriptor | None:
        """Its lookup tables (LutParam), None where it has none."""
        return getattr(self.descriptors, "lut", None)

    @property
    def what(self) -> str:
        """The operation in words."""
        return describe(self.descriptors)

    def cubes(self) -> Iterator[tuple[str, Structure]]:
        """Yield (name, data cube) of the surface descriptor; BDMA has none."""
        for name, *_ in self.surface._fields_:
            if name.endswith("_data"):
                yield name, getattr(self.surface, name)

    def used_cubes(self) -> Iterator[tuple[str, Structure]]:
        """Yield (name, data cube) for the cubes that the operation reads or writes in memory."""
        for name, cube in self.cubes():
            if cube.type != MemType.HW and cube.address != -1 and self._is_used(name):
                yield name, cube

    def _is_used(self, name: str) -> bool:
        if self.type == OpType.SDP and name[:-5] in STAGES:
            return reads_operands(getattr(self.op, f"{name[:-5]}_op"))
        if name in ("wmb_data", "wgs_data"):
            return bool(self.op.weight_format)
        return True

    # ---- numbers

    @property
    def precisions(self) -> tuple[Precision, Precision] | None:
        """Precisions of its input and output; None for BDMA and CPU operations."""
        return None if self.type is None else precisions_of(self.type, self.op)

    @property
    def precision(self) -> str | None:
        """Precision, "int8" or "fp16 -> int8"; the element format of a CPU operation."""
        if isinstance(self.descriptors, EmuOperation):
            return str(self.descriptors.src.element_format.title)
        if self.precisions is None:
            return None
        source, destination = self.precisions
        return str(source) if source == destination else f"{source} -> {destination}"

    def element_bytes(self, cube: str) -> int:
        """Return the bytes per element of a data cube: 1 for BDMA, and for an undefined precision.

        Args:
            cube: "src_data" or "dst_data".
        """
        if self.precisions is None:
            return 1
        return self.precisions[cube == "dst_data"].bytes

    @property
    def atom(self) -> int:
        """Bytes of a memory atom."""
        return self.config.memory_atom

    def surfaces(self, cube: Structure, element_bytes: int) -> int:
        """Return the number of atoms of a data cube in the channel direction.

        Args:
            cube: The data cube of the surface descriptor.
            element_bytes: Bytes per element.
        """
        return ceil_div(cube.channel * element_bytes, self.atom)

    @property
    def is_image(self) -> bool:
        """A convolution whose input is an image, not a feature cube."""
        return self.type == OpType.CONV and self.op.data_format != DataFormat.FEATURE

    # ---- data

    @property
    def input(self) -> Shape | None:
        """(channels, height, width) of the input; None for BDMA."""
        return self._shape("src")

    @property
    def output(self) -> Shape | None:
        """(channels, height, width) of the output; None for BDMA."""
        return self._shape("dst")

    def _shape(self, side: str) -> Shape | None:
        descriptors = self.descriptors
        if isinstance(descriptors, EmuOperation):
            cube = getattr(descriptors, side)
        else:
            cube = getattr(descriptors.surface, f"{side}_data", None)
        return None if cube is None else (cube.channel, cube.height, cube.width)

    @property
    def takes_on_the_fly(self) -> bool:
        """Its input comes from the engine in front of it, not from memory."""
        return self._flies("src_data")

    @property
    def gives_on_the_fly(self) -> bool:
        """Its result goes to the next engine, not to memory; that of a convolution always does."""
        return self.type == OpType.CONV or self._flies("dst_data")

    def _flies(self, name: str) -> bool:
        cube = None if self.type is None else getattr(self.surface, name, None)
        return cube is not None and cube.type == MemType.HW

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Memory accesses of the operation."""
        return self.finder.of(self.decoded, self.descriptors)

    @property
    def reads(self) -> list[Access]:
        """Reads from memory."""
        return [access for access in self.accesses if not access.writes]

    @property
    def writes(self) -> list[Access]:
        """Writes to memory."""
        return [access for access in self.accesses if access.writes]

    # ---- order

    @property
    def waits_for(self) -> int:
        """Events that must happen before it is enabled."""
        return 0 if self.type is None else self.common.dependency_count

    @cached_property
    def dependencies(self) -> tuple[Dependency, ...]:
        """Operations that wait for this one, in the order in which the firmware notifies them."""
        return () if self.type is None else tuple(self._dependencies())

    def _dependencies(self) -> Iterator[Dependency]:
        for kind, consumer in enumerate(self.common.consumers):
            if consumer.index != -1:
                yield Dependency((self.task, self.roi, consumer.index), OpType(kind), Event(consumer.event).name)
        parent = self.common.fused_parent
        if parent.index != -1:
            kind = OpType(int(self.type or 0) - 1)
            yield Dependency((self.task, self.roi, parent.index), kind, Event(parent.event).name, on_the_fly=True)


def layers_meant(layers: Iterable[str | None], name: str) -> set[str]:
    """Return the layers that a name means.

    Args:
        layers: names of layers; the operations of several layers of a model have their names joined by "+".
        name: a whole name or one of the joined names; otherwise the beginning of one, also of its short form.
    """
    known = {layer for layer in layers if layer}
    short = short_layers(known)
    exact = {layer for layer in known if name in (layer, short_layer(layer), short[layer], *layer.split("+"))}
    if exact or not name:
        return exact
    return {
        layer
        for layer in known
        if short[layer].startswith(name)
        or any(word.startswith(name) for part in layer.split("+") for word in (part, short_layer(part)))
    }


def last_layer(name: str | None) -> str:
    """Return the layer whose result an operation computes: relu1 for an operation of ip1+relu1."""
    return str(name).rsplit("+", 1)[-1]


def short_layers(layers: Iterable[str | None], unique: bool = True) -> dict[str, str]:
    """Shorten the names of the layers of a network as :func:`short_layer`, and omit the scope of most of them.

    Args:
        layers: names of layers, some several times, None where there is none.
        unique: whether a short name of two layers stays whole.

    Returns:
        The short name of each layer.
    """
    names = list(dict.fromkeys(layer for layer in layers if layer))
    scope = scope_of_most(names)
    short = {name: "+".join(_without(scope, part) for part in short_layer(name).split("+")) for name in names}
    counts = Counter(short.values())
    return {name: name if unique and counts[text] > 1 else text for name, text in short.items()}


def scope_of_most(names: Collection[str]) -> str:
    """Return the first part of the path ("model/") that more than half of the names of layers begin with."""
    scopes = Counter(scope[0] for scope in (re.match("[^/;+]+/(?=[^;+]*/)", name) for name in names) if scope)
    return next((scope for scope, count in scopes.items() if 2 * count > len(names)), "")


def _without(scope: str, name: str) -> str:
    rest = name.removeprefix(scope)
    return rest if "/" in rest else name


def short_layer(layer: str) -> str:
    """Shorten a name that comes from the path of an ONNX value or of a module of PyTorch, or from the values that
    TFLite's converter has fused.

    "/features/features.0/conv/Conv_output_0+/features/Relu_output_0" is "features.0/conv+features/Relu"; "net/a/Relu6;
    net/a/add;net/a/conv" is "a/Relu6"; "layer1.0.bn2+layer1.0.add" is "layer1.0.bn2+add".
    """
    if "/" in layer:
        return "+".join(dict.fromkeys(map(_short, layer.split("+"))))
    first, *others = layer.split("+")
    modules = [first[: at + 1] for at, mark in enumerate(first) if mark == "."]
    shared = max((path for path in modules if all(name.startswith(path) for name in others)), default="")
    short = [name.removeprefix(shared) for name in others]
    return layer if any(is_digits(name[:1]) for name in short) else "+".join([first, *short])


def _short(name: str) -> str:
    first, *others = re.split(r";(?=\S)", name)  # TFLite's converter joins names without spaces
    if others:
        scope, _, rest = first.partition("/")
        return rest if "/" in rest else f"{scope}/{rest}".rstrip("/")
    if not name.startswith("/"):
        return name
    words = re.sub(r"_output_\d+$", "", name).strip("/").split("/")
    kept = [word for word, after in zip(words, [*words[1:], ""], strict=True) if not after.startswith(f"{word}.")]
    if len(kept) > 1 and kept[-1].lower() == kept[-2].lower():
        kept.pop()
    return "/".join(kept) or name
