"""A run with a fault gives the hardware's result: it equals a run of a loadable that has the fault in its bytes,
a run whose memory was changed on the way, or the array's arithmetic done product by product."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from support.branching import branching_network

import nvdla
from nvdla.compiler.builder import build, calibrate
from nvdla.emulator.faults import Fault, Multiplier, SurfaceByte, parse
from nvdla.emulator.faults.fault import DescriptorByte, InputByte, SdpOperand, WeightByte
from nvdla.emulator.faults.injector import FirmwareRuns
from nvdla.emulator.faults.network import Setup, resolve
from nvdla.emulator.memory.linker import LinkedLoadable
from nvdla.errors import ArgumentTypeError, ConfigError, FormatError, NvdlaError, ScheduleError
from nvdla.loadable.model import Blob


class Case:
    """A network of every kind of layer, an image, and its healthy run."""

    def __init__(self, config: str) -> None:
        network = branching_network()
        ranges = calibrate(network, np.random.default_rng(1).standard_normal((1, 3, 17, 17)))
        self.config = config
        self.loadable = build(network, config, "int8", ranges).loadable
        self.runtime = nvdla.Runtime(self.loadable, config, threads=1)
        self.image = [np.random.default_rng(2).integers(-100, 100, each.size, np.int8).tobytes()
                      for each in self.runtime.inputs]  # fmt: skip
        self.injector = self.runtime._injector()
        self.golden = self.injector.golden(self.image)
        self.network = self.injector.network()

    def faulty(self, *faults: Fault) -> list[bytes]:
        return self.runtime.run_raw(self.image, faults=list(faults))

    def edited(self, faults: list[Fault]) -> nvdla.Loadable:
        """The loadable with the bytes that faults change."""
        blobs = {blob.name: bytearray(blob.data) for blob in self.loadable.blobs}
        for poke in resolve(self.network, faults).pokes:
            memory, offset = self._memory(poke.space, poke.address)
            for name, start in zip(memory.contents, memory.offsets, strict=True):
                if start <= offset < start + len(blobs[name]):
                    blobs[name][offset - start] = poke.effect.on_word(blobs[name][offset - start], 8)
        return replace(self.loadable, blobs=tuple(Blob(name, bytes(data)) for name, data in blobs.items()))

    def _memory(self, space, address):
        for number, region in self.network.linked.regions.items():
            if region.space is space and region.base <= address < region.end:
                return self.loadable.memory(number), address - region.base
        raise AssertionError

    def convolutions(self) -> dict[str, object]:
        return {name: place.job for name, place in self.network.places.items() if place.operation.type.name == "CONV"}

    def with_operands(self) -> list[str]:
        places = self.network.places.items()
        return [name for name, place in places if getattr(place.job, "sources", [None])[0] is not None]


@pytest.fixture(scope="module", params=["nv_small", "nv_large"])
def case(request):
    return Case(request.param)


@pytest.fixture(scope="module")
def small():
    return Case("nv_small")


def outcome(run) -> object:
    """The outputs, or the kind of error."""
    try:
        return run()
    except NvdlaError as error:
        return type(error)


def test_a_healthy_injector_gives_what_the_runtime_gives(case):
    assert case.golden.outputs == case.runtime.run_raw(case.image)


def test_flipped_weights_and_operands_equal_a_loadable_that_has_them(case):
    rng = random.Random(1)
    changed = 0
    for name, conv in case.convolutions().items():
        for permanent in (False, True):
            byte = rng.randrange(conv.weight_source.views[0].size)
            faults = [Fault(WeightByte(name, byte), f"flip={rng.choice((5, 6, 7))}", permanent)]
            wanted = nvdla.Runtime(case.edited(faults), case.config).run_raw(case.image)
            assert case.faulty(*faults) == wanted, faults[0]
            changed += wanted != case.golden.outputs
    for name in case.with_operands():
        faults = [Fault(SdpOperand(name, rng.randrange(8)), "flip=6", permanent=True)]
        wanted = nvdla.Runtime(case.edited(faults), case.config).run_raw(case.image)
        assert case.faulty(*faults) == wanted
        changed += wanted != case.golden.outputs
    assert changed > 3


def test_a_flipped_input_equals_a_run_on_that_input(case):
    for byte in (0, 100, 700):
        image = bytearray(case.image[0])
        image[byte] ^= 1 << 6
        assert case.faulty(Fault(InputByte(0, byte), "flip=6")) == case.runtime.run_raw([bytes(image)])


def test_a_flipped_surface_equals_a_run_with_memory_changed_after_the_operation(case):
    rng = random.Random(4)
    for name, place in case.network.places.items():
        if place.job.destination is None:
            continue
        byte = rng.randrange(place.job.destination.size)

        def change(event, name=name, byte=byte):
            if f"{event.task}/{event.index}" == name:
                at = np.unravel_index(byte, event.destination.shape)
                event.destination[at] ^= 0x40

        wanted = nvdla.Runtime(case.loadable, case.config).run_raw(case.image, change)
        assert case.faulty(Fault(SurfaceByte(name, byte), "flip=6")) == wanted, name


def test_a_changed_descriptor_does_what_a_loadable_with_that_descriptor_does(case):
    """Masked, wrong, refused or hanging: the same."""
    rng = random.Random(7)
    seen = set()
    for _ in range(40):
        name = rng.choice(("network", "dependencies", "operations", "surfaces", "luts"))
        size = 20 if name == "network" else 400
        faults = [Fault(DescriptorByte(rng.randrange(size), name), f"flip={rng.randrange(8)}")]
        edited = case.edited(faults)
        wanted = outcome(lambda edited=edited: nvdla.Runtime(edited, case.config, "new").run_raw(case.image))
        found = outcome(lambda faults=faults: case.faulty(*faults))
        assert found == wanted, str(faults[0])
        seen.add(found if isinstance(found, type) else found == case.golden.outputs)
    assert {True, ScheduleError} <= seen


def every_run(case: Case) -> FirmwareRuns:
    """Runs through the firmware that compute everything."""
    runtime = case.runtime

    def link(flat: bool) -> LinkedLoadable:
        return LinkedLoadable(case.loadable, flat=flat)

    runs = FirmwareRuns(Setup(link, runtime._decode_tasks, runtime.config, 1, runtime.limits, False))
    runs.run(case.image, resolve(case.network, []))
    runs._follow = False
    return runs


def test_a_run_from_the_fault_on_equals_the_whole_run(case):
    """Replayed from the step that is struck, given up as soon as nothing differs; against every job computed."""
    whole, rng = every_run(case), random.Random(11)
    places = case.network.places
    convs = list(case.convolutions())
    texts = []
    for _ in range(12):
        region = rng.choice([*case.network.linked.regions.values()])
        address = region.base + rng.randrange(region.size)
        before = rng.choice([*places])
        texts.append(f"memory address={address:#x} operation={before} flip={rng.randrange(8)}")
        texts.append(f"memory address={address:#x} stuck1={rng.randrange(8)} permanent")
        name, multiplier = rng.choice(convs), f"kernel={rng.randrange(8)} channel={rng.randrange(3)}"
        texts.append(f"mac {multiplier} operation={name} port=data flip=5")
        texts.append(f"mac {multiplier} set={rng.randrange(-2, 3)} permanent")
        texts.append(f"cacc operation={name} kernel=1 y=1 x=0 flip={rng.randrange(10, 20)}".replace("y=1", "y=0"))
        texts.append(f"cbuf operation={name} entry={rng.randrange(40)} byte={rng.randrange(8)} flip=6")
    changed = 0
    for text in texts:
        found = resolve(case.network, [parse(text)])
        result = outcome(lambda text=text: case.injector.run(case.golden, [parse(text)]))
        assert result == outcome(lambda found=found: whole.run(case.image, found)), text
        changed += result != case.golden.outputs
    assert changed > 10


def test_a_register_that_is_struck_equals_the_descriptor_that_sets_it(small):
    """SDP's output scale, by its register and by the field of the surface descriptor that the firmware writes there."""
    name = next(name for name, place in small.network.places.items() if place.operation.type.name == "SDP")
    task = small.network.tasks[0]
    operation = small.network.places[name].operation
    window = task.addresses[task.network.operation_desc_index]
    offset = _offset_of(operation.op.out_cvt, "scale", window)
    by_register = small.faulty(parse(f"register unit=SDP register=D_CVT_SCALE operation={name} flip=4"))
    by_descriptor = small.faulty(Fault(DescriptorByte(offset, "operations"), "flip=4"))
    assert by_register == by_descriptor


def _offset_of(structure, field, window):
    import ctypes

    place = ctypes.addressof(structure) + getattr(type(structure), field).offset
    return place - window.data.ctypes.data


def test_a_lookup_table_that_is_struck_equals_the_table_of_the_loadable(small):
    """The LRN's table: by the entry in the unit, and by its bytes where the firmware reads them."""
    name = next(name for name, place in small.network.places.items() if place.operation.type.name == "CDP")
    operation = small.network.places[name].operation
    task = small.network.tasks[0]
    window = task.addresses[task.network.lut_data_index]
    changed = 0
    for entry in range(0, 257, 16):
        byte = _offset_of(operation.lut, "linear_only_table", window) + 2 * entry + 1
        by_entry = small.faulty(parse(f"lut unit=CDP table=LO entry={entry} operation={name} flip=13"))
        by_bytes = small.faulty(Fault(DescriptorByte(byte, "luts"), "flip=5"))
        assert by_entry == by_bytes
        changed += by_entry != small.golden.outputs
    assert changed


def test_a_multiplier_that_gives_nothing_equals_weights_of_zero(case):
    """Multipliers of the kernels and channels in use, of every convolution."""
    for kernel, channel in ((0, 0), (3, 1), (7, 2)):
        faults = []
        for name, conv in case.convolutions().items():
            weights = conv.arithmetic.unpack(np.arange(conv.weight_source.count))[kernel :: conv.arithmetic.group]
            for atom in conv.arithmetic.sequence():
                elements = [(row, column, c) for row, column, first, end in atom for c in range(first, end)]
                if channel < len(elements):
                    mine = weights[(slice(None), *elements[channel])]
                    faults += [Fault(WeightByte(name, int(byte)), "set=0", permanent=True) for byte in mine]
        wanted = nvdla.Runtime(case.edited(faults), case.config).run_raw(case.image)
        assert case.faulty(Fault(Multiplier(kernel, channel), "set=0", permanent=True)) == wanted


def test_the_array_computed_product_by_product(small):
    """Products, operands and partial sums that are struck, against plain loops over the elements of one convolution."""
    name, conv = next((name, conv) for name, conv in small.convolutions().items() if not conv.settings.image)
    small.network.restore(small.golden, small.network.places[name].step)
    rng = random.Random(5)
    for _ in range(6):
        y, x, kernel, channel = rng.randrange(4), rng.randrange(4), rng.randrange(16), rng.randrange(3)
        port, bit = rng.choice(("product", "data", "weight")), rng.randrange(8)
        multiplier = Multiplier(kernel % 8, channel, port, name, y, x, atom=rng.randrange(9), group=kernel // 8)
        broken = resolve(small.network, [Fault(multiplier, f"flip={bit}")]).convolutions[
            small.network.places[name].step
        ]
        from nvdla.emulator.faults.convolution import FaultyConvolution

        healthy = conv.run()
        faulty = FaultyConvolution(conv, broken).run()
        difference = faulty.astype(np.int64) - healthy
        assert np.count_nonzero(difference) <= 1
        wanted = _difference(conv, multiplier, kernel, bit)
        assert difference[0, kernel // 8, y, x, kernel % 8] == wanted


def _difference(conv, multiplier, kernel, bit):
    """Change of the sums by one struck product, from the definition of a convolution."""
    lines, elements = conv.operands()
    weights = conv.arithmetic.unpack(elements)
    (row, column, first, end), = conv.arithmetic.sequence()[multiplier.atom]  # fmt: skip
    settings = conv.settings
    assert first == 0 and multiplier.channel < end and not settings.image
    y = multiplier.y * settings.stride_y + row * settings.dilation_y - settings.pad_top
    x = multiplier.x * settings.stride_x + column * settings.dilation_x - settings.pad_left
    inside = 0 <= y < lines.shape[1] and 0 <= x < lines.shape[2]
    data = int(lines[0, y, x, multiplier.channel]) if inside else 0
    weight = int(weights[kernel, row, column, multiplier.channel])

    def flipped(value, bits):
        value = (value & (1 << bits) - 1) ^ 1 << bit
        return value - (value >> bits - 1 << bits)

    false = {
        "product": flipped(data * weight, 16),
        "data": flipped(data, 8) * weight,
        "weight": data * flipped(weight, 8),
    }
    return false[multiplier.port] - data * weight


def test_a_partial_sum_that_is_struck_last_differs_by_its_bit(small):
    from nvdla.emulator.faults.convolution import FaultyConvolution

    name, conv = next(iter(small.convolutions().items()))
    step = small.network.places[name].step
    small.network.restore(small.golden, step)
    healthy = conv.run()
    broken = resolve(small.network, [parse(f"cacc operation={name} kernel=5 y=2 x=3 flip=12")]).convolutions[step]
    faulty = FaultyConvolution(conv, broken).run()
    assert np.argwhere(faulty != healthy).tolist() == [[0, 0, 2, 3, 5]]
    assert int(faulty[0, 0, 2, 3, 5]) ^ int(healthy[0, 0, 2, 3, 5]) == 1 << 12


def delivered(total: int, truncate: int) -> int:
    """The output of CACC for a sum: shifted, rounded half away from zero, clamped to 32 bits."""
    half = (1 << truncate) >> 1
    value = (abs(total) + half) >> truncate
    return max(-(1 << 31), min((1 << 31) - 1, value if total >= 0 else -value))


@pytest.fixture(scope="module", params=[("int8", 34), ("int16", 48)], ids=["int8", "int16"])
def summed(request):
    """A convolution of 1x1: the width of its sums, and a function of a fault (or none) in the sum of kernel 0 at a
    position. It gives the sum as numpy multiplies, and what CACC delivers with the fault."""
    from nvdla.compiler.builder import Network
    from nvdla.emulator.faults.convolution import FaultyConvolution

    precision, width = request.param
    config = "nv_small" if precision == "int8" else "nv_full"
    network = Network("one")
    weights = np.random.default_rng(1).standard_normal((8, 8, 1, 1)).astype(np.float32)
    network.output(network.convolution("conv", network.input("data", (8, 4, 4)), weights))
    ranges = calibrate(network, np.random.default_rng(1).standard_normal((1, 8, 4, 4)))
    runtime = nvdla.Runtime(build(network, config, precision, ranges).loadable, config, threads=1)
    image = [np.random.default_rng(2).integers(-100, 100, each.size, np.int8).tobytes() for each in runtime.inputs]
    injector = runtime._injector()
    golden, struck = injector.golden(image), injector.network()
    name, place = next((name, each) for name, each in struck.places.items() if each.operation.type.name == "CONV")
    struck.restore(golden, place.step)
    conv = place.job
    conv.run()
    lines, elements = conv.operands()
    kernels = conv.arithmetic.unpack(elements)[:, 0, 0].astype(np.int64)
    truncate = conv.settings.truncate

    def tried(y: int, x: int, text: str) -> tuple[int, int]:
        fault = parse(f"cacc operation={name} kernel=0 y={y} x={x} {text}")
        out = FaultyConvolution(conv, resolve(struck, [fault]).convolutions[place.step]).run()
        return int(lines[0, y, x].astype(np.int64) @ kernels[0]), int(out[0, 0, y, x, 0])

    return width, truncate, tried


def test_the_highest_bit_of_a_partial_sum_is_its_sign(summed):
    """A flip of the sign of a negative sum gives a large positive one."""
    width, truncate, tried = summed
    signs = set()
    for y, x in ((y, x) for y in range(4) for x in range(4)):
        for text in ("flip=3", f"flip={width - 1}", "stuck0=31", f"stuck1={width - 1}", f"set={(1 << width) - 999}"):
            total, found = tried(y, x, text)
            kind, number = text.split("=")[0], int(text.split("=")[1])
            word, bit = total & (1 << width) - 1, 0 if kind == "set" else 1 << number
            changed = {"flip": word ^ bit, "stuck0": word & ~bit, "stuck1": word | bit, "set": number}[kind]
            signed = changed - (1 << width) if changed >> width - 1 else changed
            assert found == delivered(signed, truncate), (text, total)
            if text == f"flip={width - 1}":
                assert (found > 0) == (total < 0)
                signs.add(total < 0)
    assert signs == {True, False}


def test_a_bit_that_the_register_of_a_sum_does_not_have_is_refused(summed):
    width, _, tried = summed
    with pytest.raises(FormatError, match=rf"bit: must be 0 .. {width - 1}, got {width}"):
        tried(0, 0, f"flip={width}")


def test_a_sum_saturates_at_the_width_of_its_register(small, monkeypatch):
    """Atoms after the fault add to a register that is full."""
    import nvdla.kernels.conv as kernels
    from nvdla.emulator.faults.convolution import FaultyConvolution, array_of

    name, conv = max(small.convolutions().items(), key=lambda item: len(array_of(item[1]).sequence()))
    step, atoms = small.network.places[name].step, len(array_of(conv).sequence())
    small.network.restore(small.golden, step)
    seen, deliver = [], kernels.deliver
    monkeypatch.setattr(kernels, "deliver", lambda sums, *rest: seen.append(sums.copy()) or deliver(sums, *rest))

    def total(value: int, atom: int) -> int:
        """The sum where ``value`` is in the register after an atom."""
        fault = parse(f"cacc operation={name} kernel=0 y=0 x=0 atom={atom} set={value}")
        FaultyConvolution(conv, resolve(small.network, [fault]).convolutions[step]).run()
        return int(seen[-1][0, 0, 0, 0])

    rest = [total(0, atom) for atom in range(atoms)]  # of the atoms after it
    steps = [before - after for before, after in pairwise(rest)]
    assert min(steps) < 0 < max(steps)
    for first in ((1 << 33) - 1, -(1 << 33)):
        value = first
        for each in steps:
            value = max(-(1 << 33), min((1 << 33) - 1, value + each))
        assert total(first, 0) == value != first + rest[0]


def test_an_entry_of_the_buffer_holds_the_bytes_of_its_weights(small):
    """The first weights are in the first entry of the banks for weights."""
    from nvdla.emulator.faults.convolution import used_entries

    for name, conv in small.convolutions().items():
        _, weights = used_entries(conv)
        entry_bytes = conv.engine.buffer.config.cbuf_entry_bytes
        for entry, byte in ((0, 3), (len(weights) - 1, 0)):
            by_entry = small.faulty(parse(f"cbuf operation={name} entry={weights[entry]} byte={byte} flip=6"))
            by_weight = small.faulty(Fault(WeightByte(name, entry * entry_bytes + byte), "flip=6"))
            assert by_entry == by_weight


def test_images_of_a_batch_have_the_same_faults_as_single_ones(case):
    rng = np.random.default_rng(9)
    images = [[rng.integers(-100, 100, len(case.image[0]), np.int8).tobytes()] for _ in range(5)]
    assert case.network.takes_lanes
    texts = [
        "mac kernel=2 channel=1 set=-1 permanent",
        f"mac kernel=1 channel=0 port=data flip=6 operation={next(iter(case.convolutions()))}",
        "register unit=SDP register=D_CVT_SCALE stuck0=0",
        "input input=0 byte=9 flip=6",
    ]
    for text in texts:
        faults = [parse(text)]
        single = [case.runtime.run_raw(image, faults=faults) for image in images]
        assert case.runtime.run_many(images, faults=faults) == single


def test_a_fault_leaves_no_trace(case):
    """Neither in the runtime nor in later runs with faults."""
    texts = (
        "mac kernel=0 channel=0 set=100 permanent",
        "weight operation=0/0 byte=3 flip=7 permanent",
        "memory address=0xc0000000 stuck1=3 permanent",
        "register unit=SDP register=D_CVT_SHIFT stuck1=2",
    )
    first = [outcome(lambda text=text: case.faulty(parse(text))) for text in texts]
    assert case.runtime.run_raw(case.image) == case.golden.outputs
    assert [outcome(lambda text=text: case.faulty(parse(text))) for text in reversed(texts)] == first[::-1]
    assert case.injector.run(case.golden, []) == case.golden.outputs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("weigth byte=3 flip=1", "must be one of weight, input"),
        ("weight byte=3 flip=1", "operation: must be given"),
        ("weight operation=0/0 byte=3", "must have one of flip=BIT"),
        ("weight operation=0/0 byte=3 flip=8", "bit: must be 0 .. 7, got 8"),
        ("weight operation=0/0 byte=3 set=300", "must fit a word of 8 bits"),
        ("weight operation=0/0 byte=x flip=1", "must be a whole number"),
        ("weight operation=9/9 byte=3 flip=1", "operation: must be task/index"),
        ("weight operation=0/0 byte=99999999 flip=1", "must be 0 .."),
        ("weight operation=0/1 byte=3 flip=1", "must be a convolution"),
        ("surface operation=0/0 byte=3 flip=1", "on the fly"),
        ("mac kernel=8 channel=0 set=0", "must be within 8 x 8"),
        ("mac kernel=0 channel=0 flip=17 operation=0/0", "bit: must be 0 .. 15, got 17"),
        ("mac kernel=0 channel=0 y=1 x=1 flip=1", "Add operation=TASK/INDEX"),
        ("mac kernel=0 channel=0 y=99 x=1 flip=1 operation=0/0", "outputs of"),
        ("cacc operation=0/0 kernel=99 y=0 x=0 flip=1", "the convolution has 16 kernels"),
        ("cbuf operation=0/0 entry=999999 byte=0 flip=1", "entries of"),
        ("register unit=SDP register=D_NOTHING flip=1 operation=0/1", "has no register"),
        ("register unit=SDP register=D_OP_ENABLE flip=1 operation=0/1", "must be a setting"),
        ("register unit=SDP register=D_CVT_SCALE flip=1", "must be stuck0 or stuck1"),
        ("register unit=PDP register=D_POOLING_PADDING_CFG flip=1 operation=0/1", "must have unit PDP"),
        ("lut entry=300 stuck0=1", "must be 0 .. 256"),
        ("memory address=0x10 flip=1", "no dram region"),
        ("descriptor byte=3 list=colours flip=1", "not of network"),
    ],
)
def test_a_place_that_is_not_there_is_one_line(small, text, words):
    with pytest.raises((FormatError, ConfigError, NvdlaError), match=words):
        small.faulty(parse(text))


def test_arguments_that_are_no_faults_are_refused(small):
    with pytest.raises(ArgumentTypeError):
        small.runtime.run_raw(small.image, faults=["weight"])
    with pytest.raises(FormatError, match="cannot be combined with on_operation"):
        small.runtime.run_raw(small.image, lambda event: None, faults=[parse("input input=0 byte=0 flip=1")])


def test_a_fault_is_parsed_back_from_its_text():
    for text in (
        "weight operation=0/3 byte=17 flip=6 permanent",
        "memory address=0xc0000010 stuck1=3",
        "mac kernel=-1 channel=2 port=data operation=0/0 y=1 x=2 length=16 flip=3",
        "lut entry=5 random=9",
    ):
        assert str(parse(text)) == text
        assert parse(str(parse(text))) == parse(text)
