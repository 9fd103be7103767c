"""The accesses of the decoded view are the bytes that the engines touch: precisions, batches, planes, strides planted
at random, the views that the engines take recorded, memory guarded and compared before and after."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from unittest import mock

import numpy as np
import pytest
from support.guards import guarded
from support.handmade import WORK, Op, network
from support.handmade import cube as fill_cube

import nvdla
from nvdla.analysis.study import Study
from nvdla.checks.lint import lint
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.memory.address_space import AddressSpace
from nvdla.loadable.descriptors.enums import DataFormat, Event, OpType, RubikMode, SdpMode, SdpType
from nvdla.loadable.descriptors.meaning import processing_precision
from nvdla.loadable.enums import PIXEL_FORMATS
from nvdla.program import Program
from nvdla.program.accesses import Footprint, merged
from nvdla.util.precision import Precision
from nvdla.util.rounding import align, ceil_div

ROOM = 1 << 20
MEMORY = 2  # "work" of the handmade network
ATOM = {"nv_small": 8, "nv_full": 32}


def test_a_picture_is_one_value_with_the_padding_of_its_lines():
    """The application gives all bytes of a bound tensor."""
    net = Network("narrow")
    weights = np.ones((8, 1, 3, 3))
    net.output(net.convolution("conv", net.input("x", (1, 8, 8)), weights, np.zeros(8)))
    samples = np.random.default_rng(0).normal(size=(4, 1, 8, 8))
    built = build(net, "nv_small", "int8", calibrate(net, samples), input_format="image")
    (value,) = (each for each in Study.of(built.loadable).values if each.kind == "input")
    assert (value.name, value.shape, value.pieces, value.bytes) == ("x", (1, 8, 8), ((0, 8 * 32),), 8 * 32)


class Planner:
    """Random cubes, one after the other in the work memory, with gaps between lines, surfaces and cubes."""

    def __init__(self, dice: random.Random, config: str) -> None:
        self.dice, self.atom, self.free = dice, ATOM[config], 0

    def take(self, size: int) -> int:
        at = self.free + self.atom * self.dice.randrange(3)
        self.free = align(at + size, self.atom)
        return at

    def cube(self, field, width, height, channels, element_bytes, pixel=None, surfaces=None, images=1):
        """Fill a data cube with gaps between lines and surfaces; returns the bytes of one image."""
        gap = lambda: self.dice.choice((0, 0, 1, 3)) * self.atom  # noqa: E731
        surfaces = surfaces or ceil_div(channels * element_bytes, self.atom)
        length = width * (pixel or self.atom)
        line = align(length, self.atom) + gap()
        surface = height * line + gap()
        if width == height == 1:
            line = surface = align(length, self.atom)
        image = align(surfaces * surface, self.atom) + gap()
        fill_cube(field, WORK, self.take(image * images), atom=self.atom)
        field.width, field.height, field.channel = width, height, channels
        field.line_stride, field.surf_stride, field.size = line, surface, align(image, self.atom)
        return image

    def size(self):
        return self.dice.randint(1, 5), self.dice.randint(1, 4), self.dice.choice((1, 3, 8, 20, 32, 33, 40, 70))


def precision(dice, config):
    return dice.choice((0, 1, 2)) if config == "nv_full" else 0


def sdp(dice, config):
    """SDP from memory to memory: all precisions, operands a channel and an element, hardware batches."""
    plan, source, target = Planner(dice, config), precision(dice, config), precision(dice, config)
    if (source, target) in ((0, 2), (1, 2), (2, 1)):
        target = source
    batch = dice.choice((1, 2, 3)) if config == "nv_full" and source == target else 1

    def fill(op, surface):
        width, height, channels = plan.size()
        sizes = Precision(source).bytes, Precision(target).bytes
        if sizes[0] > sizes[1]:
            channels = align(channels, 32)
        op.lut_index, op.out_cvt.scale, op.batch_num = -1, 1, batch
        op.src_precision, op.dst_precision = source, target
        plan.cube(surface.src_data, width, height, channels, sizes[0])
        doubled = 2 * ceil_div(channels, plan.atom) if sizes[0] < sizes[1] else None
        op.batch_stride = plan.cube(surface.dst_data, width, height, channels, sizes[1], surfaces=doubled, images=batch)
        processing = processing_precision(source, target).bytes
        for name in ("x1", "x2", "y")[: 3 if config == "nv_full" else 2]:
            stage = getattr(op, f"{name}_op")
            getattr(surface, f"{name}_data").address = -1
            if dice.random() < 0.5:
                continue
            stage.enable, stage.alu_type = 1, 2
            stage.type = dice.choice((SdpType.MUL, SdpType.ADD, SdpType.BOTH))
            stage.mode = dice.choice((SdpMode.PER_KERNEL, SdpMode.PER_POINT))
            stage.precision = 2 if source == 2 else (1 if name != "x1" or source == 1 else dice.choice((0, 1)))
            both = 2 if stage.type == SdpType.BOTH else 1
            pixel = plan.atom // processing * Precision(stage.precision).bytes * both
            surfaces = ceil_div(channels * processing, plan.atom)
            if stage.mode == SdpMode.PER_KERNEL:
                fill_cube(getattr(surface, f"{name}_data"), WORK, plan.take(pixel * surfaces), atom=plan.atom)
            else:
                plan.cube(getattr(surface, f"{name}_data"), width, height, channels, 1, pixel, surfaces)

    return [Op(OpType.SDP, fill)]


def convolution(dice, config):
    """A 1x1 convolution of features or of an image of any pixel format, with batches, into the SDP."""
    plan, kind = Planner(dice, config), precision(dice, config)
    width, height, channels = plan.size()
    kernels, image = dice.choice((1, 8, 20, 40)), dice.random() < 0.4
    batch = dice.choice((1, 2)) if config == "nv_full" and not image else 1
    form = None
    if image:
        wide = kind != 0
        known = [n for n, each in enumerate(PIXEL_FORMATS) if (each.element_bytes == 2) == wide]
        number = dice.choice([n for n in known if PIXEL_FORMATS[n].floating == (kind == 2)] or known)
        form, batch = PIXEL_FORMATS[number], 1
        channels = form.channels
    size = Precision(kind).bytes

    def fill_conv(op, surface):
        op.in_precision = op.out_precision = kind
        op.data_bank = op.weight_bank = 8
        op.entry_per_slice = op.fetch_grain = op.dilation_x = op.dilation_y = op.conv_stride_x = op.conv_stride_y = 1
        op.batch, op.out_cvt.scale, op.out_cvt.enable, op.release = batch, 1, 1, height
        op.input_width_csc, op.input_height_csc, op.input_channel_csc = width, height, channels
        op.kernel_width_csc, op.kernel_height_csc, op.kernel_channel_csc = 1, 1, channels
        op.input_width_cmac, op.input_height_cmac = width, height
        op.bytes_per_kernel = channels * size
        if form is None:
            op.data_format = DataFormat.FEATURE
            op.batch_stride = plan.cube(surface.src_data, width, height, channels, size, images=batch)
        else:
            op.data_format = PIXEL_FORMATS.index(form)
            pixel = form.bytes_per_pixel(0)
            plan.cube(surface.src_data, width, height, channels, 1, pixel, 1)
            if len(form.planes) > 1:
                line = align(width * form.bytes_per_pixel(1), 32)
                surface.in_line_uv_stride = line
                surface.offset_u = plan.take(line * height) - surface.src_data.offset
        weights = align(kernels * op.bytes_per_kernel, 128)
        fill_cube(surface.weight_data, WORK, plan.take(weights), atom=plan.atom)
        surface.weight_data.size = weights
        fill_cube(surface.dst_data, -1, memory=2, atom=plan.atom, width=width, height=height, channels=kernels)
        if width == height == 1:
            surface.dst_data.line_stride = surface.dst_data.surf_stride = plan.atom
        for name in ("wmb_data", "wgs_data"):
            getattr(surface, name).address = -1

    def fill_sdp(op, surface):
        op.lut_index, op.out_cvt.scale, op.batch_num = -1, 1, batch
        op.src_precision = op.dst_precision = kind
        fill_cube(surface.src_data, -1, memory=2, atom=plan.atom, width=width, height=height, channels=kernels)
        op.batch_stride = plan.cube(surface.dst_data, width, height, kernels, size, images=batch)
        for name in ("x1_data", "x2_data", "y_data"):
            getattr(surface, name).address = -1

    return [
        Op(OpType.CONV, fill_conv, 1, {OpType.SDP: (1, Event.OP_PROGRAMMED)}),
        Op(OpType.SDP, fill_sdp, 1, fused_parent=(0, Event.OP_ENABLED)),
    ]


def pooling(dice, config):
    plan, kind = Planner(dice, config), precision(dice, config)

    def fill(op, surface):
        width, height, channels = plan.size()
        op.split_num = op.stride_x = op.stride_y = op.pool_mode = 1
        op.precision, size = kind, Precision(kind).bytes
        op.pool_width, op.pool_height = min(width, 2) - 1, min(height, 3) - 1
        plan.cube(surface.src_data, width, height, channels, size)
        plan.cube(surface.dst_data, width - op.pool_width, height - op.pool_height, channels, size)

    return [Op(OpType.PDP, fill)]


def normalization(dice, config):
    plan, kind = Planner(dice, config), precision(dice, config)

    def fill(op, surface):
        width, height, channels = plan.size()
        op.in_precision = op.out_precision = kind
        op.local_size, op.lut_index = 3, 0
        op.in_cvt.scale = op.out_cvt.scale = 1
        for cube in (surface.src_data, surface.dst_data):
            plan.cube(cube, width, height, channels, Precision(kind).bytes)

    return [Op(OpType.CDP, fill)]


def rubik(dice, config):
    plan, kind, mode = Planner(dice, config), precision(dice, config), dice.choice(list(RubikMode)[:3])
    size = Precision(kind).bytes

    def planes(cube, width, height, channels):
        cube.type, cube.address = 0, WORK
        cube.width, cube.height, cube.channel = width, height, channels
        cube.line_stride = align(width * size, 32) + 32 * dice.randrange(2)
        cube.plane_stride = cube.line_stride * height + 32 * dice.randrange(2)
        cube.size = cube.plane_stride * channels
        cube.offset = plan.take(cube.size)

    def fill(op, surface):
        width, height, channels = plan.size()
        op.mode, op.precision = mode, kind
        op.stride_x, op.stride_y = dice.randint(1, 3), dice.randint(1, 3)
        if mode == RubikMode.CONTRACT:
            channels = align(channels, 32)
            steps = op.stride_x * op.stride_y
            plan.cube(surface.src_data, width, height, channels * steps, size)
            plan.cube(surface.dst_data, width * op.stride_x, height * op.stride_y, channels, size)
        elif mode == RubikMode.SPLIT:
            plan.cube(surface.src_data, width, height, channels, size)
            planes(surface.dst_data, width, height, channels)
        else:
            width = align(width * size, 32) // size
            planes(surface.src_data, width, height, channels)
            plan.cube(surface.dst_data, width, height, channels, size)

    return [Op(OpType.RUBIK, fill)]


def copies(dice, config):
    def fill(op, surface):
        op.num_transfers = surface.num_transfers = dice.randint(1, 3)
        surface.source_type = surface.destination_type = 0
        for number in range(surface.num_transfers):
            each = surface.transfers[number]
            each.line_size = 32 * dice.randint(1, 3)
            each.line_repeat, each.surface_repeat = dice.randint(1, 3), dice.randint(1, 3)
            for side in ("source", "destination"):
                setattr(each, f"{side}_address", WORK)
                line = each.line_size + 32 * dice.randrange(2)
                setattr(each, f"{side}_line", line)
                setattr(each, f"{side}_surface", line * each.line_repeat + 32 * dice.randrange(2))

    return [Op(OpType.BDMA, fill)]


MAKERS = {
    "sdp": (sdp, ("nv_small", "nv_full")),
    "convolution": (convolution, ("nv_small", "nv_full")),
    "pooling": (pooling, ("nv_small", "nv_full")),
    "normalization": (normalization, ("nv_small", "nv_full")),
    "rubik": (rubik, ("nv_full",)),
    "copies": (copies, ("nv_full",)),
}


def roomy(ops, config):
    """The operations as a loadable with enough work memory."""
    loadable = network(ops, config)
    memories = tuple(dataclasses.replace(each, size=ROOM) if each.id == MEMORY else each for each in loadable.memories)
    addresses = tuple(
        dataclasses.replace(each, size=ROOM) if each.mem_id == MEMORY else each for each in loadable.addresses
    )
    return dataclasses.replace(loadable, memories=memories, addresses=addresses)


@contextlib.contextmanager
def recorded():
    """Pieces of the work memory of which an engine takes a view, in the list that this gives."""
    found, surface, view = [], AddressSpace.surface, AddressSpace.view

    def inside(self, space, address):
        region = self.find(space, address, 0)
        return address - region.base if region.name == f"memory {MEMORY}" else None

    def seen_surface(self, space, address, shape, line_stride, surface_stride, *args, **options):
        surfaces, height, width, atom = shape
        start = inside(self, space, address)
        if start is not None:
            loops = ((height, line_stride), (surfaces, surface_stride))
            found.extend(Footprint(width * atom, loops).pieces(start))
        return surface(self, space, address, shape, line_stride, surface_stride, *args, **options)

    def seen_view(self, space, address, size, *args):
        start = inside(self, space, address)
        if start is not None:
            found.append((start, start + size))
        return view(self, space, address, size, *args)

    with mock.patch.object(AddressSpace, "surface", seen_surface), mock.patch.object(AddressSpace, "view", seen_view):
        yield found


def run_on(runtime, fill):
    """The work memory after a run through the firmware that found it full of ``fill``."""
    memory, runtime._plan = runtime._linked.regions[MEMORY].data, None
    reset = type(runtime._linked).reset

    def refill(linked, dirty=None):
        reset(linked, dirty)
        memory[:] = fill

    with mock.patch.object(type(runtime._linked), "reset", refill):
        runtime.run_raw([bytes(tensor.size) for tensor in runtime.inputs])
    return memory.copy()


@pytest.mark.parametrize("name", MAKERS)
def test_accesses_are_what_the_engines_touch(name):
    """To the byte, for every engine, in random precisions, layouts, batches and strides."""
    make, configs = MAKERS[name]
    dice, ran = random.Random(name), 0
    for turn in range(60):
        config = configs[turn % len(configs)]
        ops = make(dice, config)
        loadable = roomy(ops, config)
        with guarded() as guards, recorded() as touched:
            runtime = nvdla.Runtime(loadable, config)
            try:
                first = run_on(runtime, 0x00)
            except nvdla.NvdlaError:
                continue
            views = merged(sorted(touched))
            second = run_on(runtime, 0xFF)
            guards.check()
        program = Program.of(loadable, config)
        accesses = [access for operation in program.operations for access in operation.accesses]
        assert all(access.memory == MEMORY for access in accesses)
        # CDMA fetches all weights of the descriptor; the emulator looks at those it multiplies with.
        padding = [piece for access in accesses if access.role == "weights" for piece in access.pieces]
        said = merged(sorted(piece for access in accesses for piece in access.pieces))
        assert merged(sorted([*views, *padding])) == said, (config, turn)
        written = [piece for access in accesses if access.writes for piece in access.pieces]
        kept = (first == 0x00) & (second == 0xFF)
        for start, end in written:
            kept[start:end] = True
        assert kept.all(), f"{config} {turn}: something was written outside the declared accesses"
        ran += 1
    assert ran >= 25


def half_to_int8():
    """SDP from fp16 to int8 with operands a channel: 40 channels are three groups of 16, not two of 32."""

    def fill(op, surface):
        op.lut_index, op.out_cvt.scale, op.batch_num = -1, 1, 1
        op.src_precision, op.dst_precision = Precision.FP16, Precision.INT8
        fill_cube(surface.src_data, WORK, 0, atom=32, channels=33)
        fill_cube(surface.dst_data, WORK, 256, atom=32, channels=33)
        fill_cube(surface.x1_data, WORK, 512, atom=32)
        for name in ("x2_data", "y_data"):
            getattr(surface, name).address = -1
        op.x1_op.enable, op.x1_op.type, op.x1_op.mode, op.x1_op.precision = 1, 2, 1, Precision.INT8
        op.x1_op.alu_type = 2

    return roomy([Op(OpType.SDP, fill)], "nv_full")


def test_operands_of_fp16_that_becomes_int8_come_in_halves():
    operand = next(each for each in Program.of(half_to_int8(), "nv_full").operations[0].reads if each.role == "x1")
    assert operand.pieces == ((512, 512 + 3 * 16),)


def batch_of_two(stride):
    """A convolution and its SDP on two images; the second image of the SDP's output is ``stride`` bytes after the
    first."""
    dice = random.Random(3)
    for _ in range(200):
        loadable = roomy(convolution(dice, "nv_full"), "nv_full")
        sdp = Program.of(loadable, "nv_full").operations[1]
        if sdp.op.batch_num == 2:
            break

    def moved(task):
        task.operation(1).op.batch_stride = stride
        task.operation(1).surface.dst_data.offset = 0

    return loadable, moved


def test_lint_checks_all_images_of_a_batch(plant):
    """The second image ends beyond its memory, the first does not."""
    loadable, moved = batch_of_two(ROOM)
    found = lint(plant(loadable, moved), "nv_full").findings
    outside = [each for each in found if each.rule == "surfaces-are-in-their-windows"]
    assert [(each.operation, each.evidence.split(" ends at ")[0]) for each in outside] == [(1, "dst_data")]


def test_lint_sees_the_second_plane_of_an_image(plant):
    """A picture of two planes whose second is outside its memory."""
    dice = random.Random(5)
    for _ in range(500):
        loadable = roomy(convolution(dice, "nv_full"), "nv_full")
        conv = Program.of(loadable, "nv_full").operations[0]
        if any(access.role == "src uv" for access in conv.reads):
            break

    def moved(task):
        task.operation(0).surface.offset_u = ROOM

    found = lint(plant(loadable, moved), "nv_full").findings
    assert ("surfaces-are-in-their-windows", 0) in {(each.rule, each.operation) for each in found}


def test_nothing_that_reads_a_file_loads_kernels(samples):
    import subprocess
    import sys

    code = (
        "import sys, nvdla; from nvdla.program import Program; "
        f"program = Program.of(nvdla.load({str(samples / 'lenet.loadable')!r})); "
        "[(each.accesses, each.dependencies, each.what) for each in program.operations]; program.chains; "
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
