"""Interpreter of the IREE VM and its frames.

It has no device: a function that reaches a missing import (hal.*) fails with its name. Instructions,
call depth and memory are limited, so any module ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvdla.interop.containers.vmfb.instructions import (
    ELEMENT_OFFSETS,
    IMPORT_BIT,
    MOVE_BIT,
    REF_BIT,
    REF_MASK,
    Branch,
    Decoder,
    Instruction,
)
from nvdla.interop.containers.vmfb.module import Module, ModuleFunction, Signature
from nvdla.interop.containers.vmfb.values import (
    VmBuffer,
    VmError,
    VmList,
    VmMemory,
    element_size,
    operation,
    round_f32,
    siphash,
    wrap,
)

KINDS = {"i": "i", "I": "l", "f": "f", "F": "d", "r": "r"}
"""Letters of a signature -> kinds of registers."""


@dataclass
class Frame:
    """One activation: 32-bit registers as unsigned numbers, reference registers as objects."""

    function: ModuleFunction
    decoder: Decoder
    registers: list[int]
    refs: list[object]
    pc: int = 0
    #: Where the caller wants the results.
    results: tuple[int, ...] = ()
    resume: int | None = None

    def read(self, kind: str, register: int) -> Any:
        """The value of a register as its kind says (i, l, f, d or r)."""
        if kind == "r":
            return self.refs[register & REF_MASK]
        low = self.registers[register]
        if kind == "i":
            return low - (1 << 32) if low >> 31 else low
        if kind == "f":
            return struct.unpack("<f", low.to_bytes(4, "little"))[0]
        wide = low | self.registers[register + 1] << 32
        return wrap(wide, 64) if kind == "l" else struct.unpack("<d", wide.to_bytes(8, "little"))[0]

    def take(self, register: int) -> Any:
        """A reference operand; a moved one leaves its register empty."""
        value = self.refs[register & REF_MASK]
        if register & MOVE_BIT:
            self.refs[register & REF_MASK] = None
        return value

    def write(self, kind: str, register: int, value: Any) -> None:
        """Set a register of a kind."""
        if kind == "r":
            self.refs[register & REF_MASK] = value
        elif kind == "i":
            self.registers[register] = value & 0xFFFFFFFF
        elif kind == "f":
            self.registers[register] = int.from_bytes(struct.pack("<f", round_f32(value)), "little")
        else:
            wide = value & (1 << 64) - 1 if kind == "l" else int.from_bytes(struct.pack("<d", value), "little")
            self.registers[register], self.registers[register + 1] = wide & 0xFFFFFFFF, wide >> 32


def listed(frame: Frame, kind: str, register: int) -> Any:
    """The value of a register out of a list, which says nothing of its kind but whether it is a reference."""
    if (kind == "r") != bool(register & REF_BIT):
        raise VmError(f"register 0x{register:04x} of a list: must have the kind of the signature")
    frame.decoder.check_register(register, kind)
    return frame.take(register) if kind == "r" else frame.read(kind, register)


def argument_places(letters: str) -> list[tuple[str, int]]:
    """(kind, register) of each argument: banks fill from 0, 64-bit values take an even pair."""
    plain = refs = 0
    places = []
    for letter in letters:
        kind = KINDS[letter]
        if kind == "r":
            places.append((kind, refs))
            refs += 1
            continue
        width = 2 if kind in "ld" else 1
        plain += plain % width
        places.append((kind, plain))
        plain += width
    return places


def plain_places(sources: Sequence[int]) -> list[tuple[str, int]]:
    """(kind, register) of each value where only references and 32-bit registers are distinguished."""
    counts = {"r": 0, "i": 0}
    places = []
    for source in sources:
        kind = "r" if source & REF_BIT else "i"
        places.append((kind, counts[kind]))
        counts[kind] += 1
    return places


LETTERS = {"i": "i32", "I": "i64", "f": "f32", "F": "f64", "r": "ref"}


@dataclass(frozen=True)
class MachineLimits:
    """``instructions`` executed, nested ``depth`` of calls, ``memory`` in bytes."""

    instructions: int = 10_000_000
    depth: int = 256
    memory: int = 1 << 28


@dataclass
class VirtualMachine:
    """A module with its state (globals), ready to call. ``imports`` provides functions by full name: they get and
    return Python numbers, VmBuffer, VmList or None; more than one result as a tuple."""

    module: Module
    imports: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    limits: MachineLimits = MachineLimits()

    def __post_init__(self) -> None:
        self.memory = VmMemory(self.limits.memory)
        self.memory.take(self.module.global_bytes + 8 * self.module.global_refs, "globals")
        self.globals = VmBuffer(bytearray(self.module.global_bytes))
        self.global_refs: list[object] = [None] * self.module.global_refs
        self.rodata = [VmBuffer(segment.data, is_constant=True) for segment in self.module.rodata]
        self.executed = 0
        self.stack: list[Frame] = []
        self.decoders: dict[int, Decoder] = {}
        self.decoded: dict[tuple[int, int], Instruction] = {}
        self.is_initialized = False

    def call(self, name: str, arguments: Sequence[object]) -> list[object]:
        """Calls an exported function, after the module's ``__init`` the first time. FormatError (VmError) when it
        cannot run to its end."""
        export = self.module.export(name)
        if not self.is_initialized:
            self.is_initialized = True
            for initializer in self.module.exports:
                if initializer.name == "__init" and initializer is not export:
                    self.invoke(self.module.functions[initializer.ordinal], [])
        return self.invoke(self.module.functions[export.ordinal], arguments)

    def invoke(self, function: ModuleFunction, arguments: Sequence[object]) -> list[object]:
        """Call a function with Python values; returns its results. Raises VmError."""
        letters = signature_letters(function.signature, f"{self.module.source.name}: {function.name}")
        if len(arguments) != len(letters[0]):
            raise VmError(
                f"{self.module.source.name}: {function.name}: must get {len(letters[0])} arguments "
                f"({', '.join(LETTERS[c] for c in letters[0]) or 'none'}), got {len(arguments)}"
            )
        self.stack = []
        frame = self.enter(function)
        for (kind, register), value in zip(argument_places(letters[0]), arguments, strict=True):
            self.check_place(frame, kind, register)
            frame.write(kind, register, value)
        return self.run(letters[1])

    def enter(self, function: ModuleFunction) -> Frame:
        """A frame for a call. Raises VmError for too many of them."""
        if len(self.stack) >= self.limits.depth:
            raise VmError(
                f"{self.module.source.name}: nested calls: must be at most {self.limits.depth} (option depth)"
            )
        self.spend(function.registers + function.ref_registers)
        decoder = self.decoders.setdefault(function.ordinal, Decoder(self.module, function))
        frame = Frame(function, decoder, [0] * function.registers, [None] * function.ref_registers)
        self.stack.append(frame)
        return frame

    def check_place(self, frame: Frame, kind: str, register: int) -> None:
        """Raise VmError for a register that a frame does not have."""
        limit = len(frame.refs) if kind == "r" else len(frame.registers) - (kind in "ld")
        if register >= limit:
            raise frame.decoder.fail(0, "registers: must be enough for the arguments, got {limit}")

    def run(self, result_letters: str) -> list[object]:
        """Executes until the outermost frame returns."""
        results: list[object] = []
        while self.stack:
            frame = self.stack[-1]
            instruction = self.fetch(frame)
            frame.pc = instruction.next_pc
            try:
                self.executed += 1
                self.spend(0)
                returned = self.execute(frame, instruction)
            except ZeroDivisionError:
                raise frame.decoder.fail(instruction.pc, f"vm.{instruction.mnemonic}: division by zero") from None
            except VmError as error:
                raise error.at(f"{frame.decoder.place(instruction.pc)}: vm.{instruction.mnemonic}") from None
            if returned is not None:
                results = self.leave(frame, returned, result_letters)
        return results

    def spend(self, amount: int) -> None:
        """Counts work that one instruction does on many bytes or registers: 64 of them as one instruction."""
        self.executed += amount >> 6
        if self.executed > self.limits.instructions:
            raise VmError(f"instructions: must be at most {self.limits.instructions} (option instructions)")

    def fetch(self, frame: Frame) -> Instruction:
        """The present instruction of a frame."""
        key = (frame.function.ordinal, frame.pc)
        instruction = self.decoded.get(key)
        if instruction is None:
            instruction = self.decoded[key] = frame.decoder.at(frame.pc)
            self.spend(64 * (instruction.next_pc - instruction.pc))
        return instruction

    def execute(self, frame: Frame, instruction: Instruction) -> tuple[int, ...] | None:
        """One instruction; the registers of its results when it is a return."""
        compute = operation(instruction.mnemonic)
        if compute is not None:
            *kinds, result = list(instruction.shape.replace(">", ""))
            *registers, target = instruction.operands
            values = [frame.read(kind, register) for kind, register in zip(kinds, registers, strict=True)]
            frame.write(result, target, compute(*values))
            return None
        if instruction.mnemonic == "return":
            return instruction.operands[0]
        handler = _HANDLERS.get(instruction.mnemonic) or _HANDLERS.get(instruction.mnemonic.split(".")[0])
        if handler is None:
            raise VmError("must be an instruction that this interpreter supports")
        handler(self, frame, instruction)
        return None

    def branch(self, frame: Frame, branch: Branch) -> None:
        """Go where a branch leads, with its moves."""
        self.spend(len(branch.pairs))
        for source, target in branch.pairs:
            if source & REF_BIT:
                frame.write("r", target, frame.take(source))
            else:
                frame.registers[target] = frame.registers[source]
        frame.pc = branch.target

    def call_function(
        self, frame: Frame, ordinal: int, sources: tuple[int, ...], targets: tuple[int, ...], resume: int | None
    ) -> None:
        """Enters a function of the module; its arguments go to the first registers of each bank."""
        function = self.module.functions[ordinal]
        callee = self.enter(function)
        callee.results, callee.resume = targets, resume
        letters = function.signature.arguments
        if len(letters) == len(sources) and set(letters) <= set(KINDS):
            places = argument_places(letters)
        else:  # before 2023-03 internal functions had no signature: each register counts for itself
            places = plain_places(sources)
        for (kind, register), source in zip(places, sources, strict=True):
            self.check_place(callee, kind, register)
            callee.write(kind, register, listed(frame, kind, source))

    def leave(self, frame: Frame, sources: tuple[int, ...], outer_letters: str) -> list[object]:
        """Hands results to the caller; of the outermost frame, returns them."""
        letters = frame.function.signature.results
        has_kinds = len(letters) == len(sources) and set(letters) <= set(KINDS)
        kinds = [KINDS[c] for c in letters] if has_kinds else ["r" if s & REF_BIT else "i" for s in sources]
        values = [listed(frame, kind, source) for kind, source in zip(kinds, sources, strict=True)]
        self.stack.pop()
        if not self.stack:
            if len(values) != len(outer_letters):
                raise frame.decoder.fail(
                    frame.pc, f"returned values: must be {len(outer_letters)} (signature), got {len(values)}"
                )
            return values
        caller = self.stack[-1]
        if len(frame.results) < len(values):
            raise frame.decoder.fail(
                frame.pc, f"returned values: must be {len(frame.results)} (caller), got {len(values)}"
            )
        self.store_results(caller, kinds, frame.results, values)
        if frame.resume is not None:
            caller.pc = frame.resume
        return []

    def store_results(
        self, caller: Frame, kinds: Sequence[str], targets: Sequence[int], values: Sequence[object]
    ) -> None:
        """Put results of a call into the caller's registers."""
        for kind, target, value in zip(kinds, targets, values, strict=False):
            if (kind == "r") != bool(target & REF_BIT):
                raise VmError("result: must have the kind of its register")
            caller.decoder.check_register(target, kind)
            caller.write(kind, target, value)

    def call_import(
        self,
        frame: Frame,
        ordinal: int,
        segments: tuple[int, ...] | None,
        sources: tuple[int, ...],
        targets: tuple[int, ...],
    ) -> None:
        """Call a function that the host provides."""
        wanted = self.module.imports[ordinal & ~IMPORT_BIT]
        provided = self.imports.get(wanted.name)
        if provided is None:
            raise VmError(missing_import(wanted.name))
        if segments is not None:
            raise VmError(f"import {wanted.name}: must have a fixed number of arguments")
        arguments, results = signature_letters(wanted.signature, f"import {wanted.name}")
        if len(arguments) != len(sources) or len(results) < len(targets):
            raise VmError(f"import {wanted.name}: call: must fit the signature {wanted.signature.convention!r}")
        values = [listed(frame, KINDS[letter], source) for letter, source in zip(arguments, sources, strict=True)]
        answer = provided(*values)
        answers = answer if isinstance(answer, tuple) else () if answer is None and not results else (answer,)
        self.store_results(frame, [KINDS[c] for c in results], targets, answers)


def missing_import(name: str) -> str:
    """Why a call of an import cannot go on."""
    if name.startswith(("hal.", "io_parameters.", "hal_loader.", "hal_inline.")):
        return f"{name} needs a device, and this interpreter has none"
    return f"import {name} is not provided"


def signature_letters(signature: Signature, where: str) -> tuple[str, str]:
    """(arguments, results) as letters. VmError for variadic or missing signatures."""
    letters = signature.arguments + signature.results
    if not signature.convention.startswith("0"):
        raise VmError(f"{where}: signature: must be recorded, got {signature.convention!r}")
    for letter in letters:
        if letter not in LETTERS:
            raise VmError(
                f"{where}: signature: must have supported types only, got {letter!r} in {signature.convention!r}"
            )
    return signature.arguments, signature.results


# -- instructions that are more than arithmetic ----------------------------------------------------------------------


def _kind(instruction: Instruction) -> str:
    """The element type in a mnemonic: i8 .. f64."""
    return next((p for p in instruction.mnemonic.split(".") if p in ("i8", "i16", "i32", "i64", "f32", "f64")), "i32")


def _global(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    parts, operands = instruction.mnemonic.split("."), instruction.operands
    where = operands[0] if "indirect" not in parts else frame.read("i", operands[0]) & 0xFFFFFFFF
    is_load, last = parts[1] == "load", operands[-1]
    if parts[-1] == "ref":
        if where >= len(machine.global_refs):
            raise VmError(f"global reference: must be below {len(machine.global_refs)}, got {where}")
        if is_load:
            frame.write("r", last, machine.global_refs[where])
        else:
            machine.global_refs[where] = frame.take(last)
        return
    kind, letter = parts[-1], instruction.shape.replace(">", "")[-1]
    if is_load:
        frame.write(letter, last, machine.globals.load(kind, where))
    else:
        machine.globals.store(kind, where, frame.read(letter, last))


def _const(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    name, operands = instruction.mnemonic, instruction.operands
    if name == "const.ref.rodata":
        frame.write("r", operands[1], machine.rodata[operands[0]])
    elif name == "const.ref.zero":
        frame.write("r", operands[0], None)
    else:
        frame.write(instruction.shape[-1], operands[-1], 0 if name.endswith(".zero") else operands[0])


def _select(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    condition, *rest = instruction.operands
    kind = instruction.shape[-1]
    chosen = rest[-3] if frame.read("i", condition) else rest[-2]
    value = frame.take(chosen) if kind == "r" else frame.read(kind, chosen)
    frame.write(kind, rest[-1], value)


def _switch(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    index, *rest = instruction.operands
    default, values, result = rest[-3:]
    kind, number = instruction.shape[-1], frame.read("i", index)
    if 0 <= number < len(values):
        chosen = values[number]
        if (kind == "r") != bool(chosen & REF_BIT):
            raise VmError("value: must have the kind of the result")
        frame.decoder.check_register(chosen, kind)
        # Every IREE forwards only the low half of a chosen i64, sign-extended (SwitchI64 in vm/bytecode/dispatch.c).
        value = frame.take(chosen) if kind == "r" else frame.read("i" if kind == "l" else kind, chosen)
    elif "#" in instruction.shape:
        value = default
    else:
        value = frame.take(default) if kind == "r" else frame.read(kind, default)
    frame.write(kind, result, value)


def _reference(frame: Frame, register: int, wanted: type, kind: str) -> Any:
    value = frame.read("r", register)
    if not isinstance(value, wanted):
        raise VmError(
            f"register {register & REF_MASK}: must hold a {kind}, got {'null' if value is None else 'another kind'}"
        )
    return value


def _list(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    action, operands = instruction.mnemonic.split(".")[1], instruction.operands
    if action == "alloc":
        types = machine.module.types
        element = types[operands[0]] if operands[0] < len(types) else "?"
        items = VmList(element, machine.memory)
        items.reserve(frame.read("i", operands[1]) & 0xFFFFFFFF)
        frame.write("r", operands[2], items)
        return
    held = _reference(frame, operands[0], VmList, "list")
    if action == "size":
        frame.write("i", operands[1], len(held.items))
        return
    number = frame.read("i", operands[1]) & 0xFFFFFFFF
    letter, last = instruction.shape.replace(">", "")[-1], operands[-1]
    if action == "reserve":
        held.reserve(number)
    elif action == "resize":
        machine.spend(64 * abs(number - len(held.items)))
        held.resize(number)
    elif action == "get":
        kind = None if letter == "r" else {"i": "i32", "l": "i64", "f": "f32", "d": "f64"}[letter]
        frame.write(letter, last, held.get(number, kind))
    else:
        held.set(number, frame.take(last) if letter == "r" else frame.read(letter, last))
    if action == "get" and operands[0] & MOVE_BIT and operands[0] & REF_MASK != last & REF_MASK:
        frame.take(operands[0])


def _buffer(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    action = instruction.mnemonic.split(".")[1]
    _BUFFER_ACTIONS[action](machine, frame, instruction)


def _offset(machine: VirtualMachine, frame: Frame, instruction: Instruction, register: int, size: int) -> int:
    """An offset or length in bytes: in the code they count elements from version 13 on."""
    value = frame.read(instruction.shape[1], register)
    scale = size if (machine.module.major or 0) >= ELEMENT_OFFSETS else 1
    return value * scale


def _plain_offsets(frame: Frame, instruction: Instruction, *registers: int) -> list[int]:
    kind = instruction.shape[0 if instruction.mnemonic == "buffer.alloc" else 1]
    return [frame.read(kind, register) for register in registers]


def _buffer_alloc(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    (length,) = _plain_offsets(frame, instruction, instruction.operands[0])
    if length < 0:
        raise VmError(f"buffer: length: must not be negative, got {length}")
    buffer = VmBuffer.allocate(length, machine.memory)
    machine.spend(length)
    frame.write("r", instruction.operands[-1], buffer)


def _buffer_clone(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    source, offset, length, *_ = instruction.operands
    held = _reference(frame, source, VmBuffer, "buffer")
    where = held.span(*_plain_offsets(frame, instruction, offset, length))
    machine.spend(where.stop - where.start)
    frame.write("r", instruction.operands[-1], VmBuffer.allocate(memoryview(held.data)[where], machine.memory))


def _buffer_length(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    held = _reference(frame, instruction.operands[0], VmBuffer, "buffer")
    frame.write(instruction.shape[-1], instruction.operands[1], len(held.data))


def _buffer_pair(frame: Frame, instruction: Instruction) -> tuple[VmBuffer, VmBuffer, int, int, int]:
    first, first_offset, second, second_offset, length, *_ = instruction.operands
    offsets = _plain_offsets(frame, instruction, first_offset, second_offset, length)
    return (_reference(frame, first, VmBuffer, "buffer"), _reference(frame, second, VmBuffer, "buffer"), *offsets)


def _buffer_copy(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    source, target, from_offset, to_offset, length = _buffer_pair(frame, instruction)
    data = bytes(source.data[source.span(from_offset, length)])
    machine.spend(length)
    target.data[target.writable(to_offset, length)] = data


def _buffer_compare(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    a, b, a_offset, b_offset, length = _buffer_pair(frame, instruction)
    machine.spend(length)
    is_equal = a.data[a.span(a_offset, length)] == b.data[b.span(b_offset, length)]
    frame.write("i", instruction.operands[-1], int(is_equal))


def _buffer_fill(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    register, offset, length, value = instruction.operands
    held, kind = _reference(frame, register, VmBuffer, "buffer"), _kind(instruction)
    size = element_size(kind)
    start = _offset(machine, frame, instruction, offset, size)
    count = _offset(machine, frame, instruction, length, size) // size
    machine.spend(count * size)
    held.fill(kind, start, count, frame.read(instruction.shape[-2], value))


def _buffer_load(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    register, offset, result = instruction.operands
    held, kind = _reference(frame, register, VmBuffer, "buffer"), _kind(instruction)
    value = held.load(kind, _offset(machine, frame, instruction, offset, element_size(kind)))
    if instruction.mnemonic.endswith(".u"):
        value &= (1 << 8 * element_size(kind)) - 1
    frame.write(instruction.shape[-1], result, value)


def _buffer_store(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    register, offset, value = instruction.operands
    held, kind = _reference(frame, register, VmBuffer, "buffer"), _kind(instruction)
    where = _offset(machine, frame, instruction, offset, element_size(kind))
    held.store(kind, where, frame.read(instruction.shape[-2], value))


def _buffer_hash(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    register, offset, length, result = instruction.operands
    held = _reference(frame, register, VmBuffer, "buffer")
    where = held.span(*_plain_offsets(frame, instruction, offset, length))
    machine.spend(64 * (where.stop - where.start))
    frame.write("l", result, siphash(bytes(held.data[where])))


_BUFFER_ACTIONS = {
    "alloc": _buffer_alloc,
    "clone": _buffer_clone,
    "length": _buffer_length,
    "copy": _buffer_copy,
    "compare": _buffer_compare,
    "fill": _buffer_fill,
    "load": _buffer_load,
    "store": _buffer_store,
    "hash": _buffer_hash,
}


def _branch(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    machine.branch(frame, instruction.operands[-1])


def _cond_branch(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    condition, when_true, when_false = instruction.operands
    machine.branch(frame, when_true if frame.read("i", condition) else when_false)


def _branch_table(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    index, (default, *cases) = instruction.operands
    number = frame.read("i", index)
    machine.branch(frame, cases[number] if 0 <= number < len(cases) else default)


def _call(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    """All four calls: with segments when variadic, with a place to go on when yieldable (nothing yields here)."""
    ordinal, *rest = instruction.operands
    segments = rest.pop(0) if "U" in instruction.shape else None
    sources, targets = rest[0], rest[-1]
    resume = rest[1] if "P" in instruction.shape else None
    machine.spend(len(sources) + len(targets))
    if not ordinal & IMPORT_BIT:
        machine.call_function(frame, ordinal, sources, targets, resume)
        return
    machine.call_import(frame, ordinal, segments, sources, targets)
    if resume is not None:
        frame.pc = resume


def _fail(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    status = frame.read("i", instruction.operands[0])
    if status:
        raise VmError(f"the module fails with status {status}: {instruction.operands[1] or 'no message'}")


def _import_resolved(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    ordinal, result = instruction.operands
    if not ordinal & IMPORT_BIT:
        raise VmError("function: must be an import")
    frame.write("i", result, int(machine.module.imports[ordinal & ~IMPORT_BIT].name in machine.imports))


def _compare_refs(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    *registers, result = instruction.operands
    values = [frame.take(register) for register in registers]
    test = instruction.mnemonic.split(".")[1]
    answer = values[0] is not None if test == "nz" else (values[0] is values[1]) == (test == "eq")
    frame.write("i", result, int(answer))


def _move_ref(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    frame.write("r", instruction.operands[-1], frame.take(instruction.operands[0]))


def _discard_refs(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    for register in instruction.operands[0]:
        if register & REF_BIT:
            frame.write("r", register, None)


def _nothing(machine: VirtualMachine, frame: Frame, instruction: Instruction) -> None:
    """Block markers; trace and print, which are for debuggers."""


#: By mnemonic, or by its first word.
_HANDLERS: Mapping[str, Callable[[VirtualMachine, Frame, Instruction], None]] = {
    "global": _global, "const": _const, "select": _select, "switch": _switch, "list": _list, "buffer": _buffer,
    "br": _branch, "yield": _branch, "break": _branch, "cond_break": _branch, "cond_br": _cond_branch,
    "br_table": _branch_table, "call": _call, "fail": _fail, "import.resolved": _import_resolved,
    "cmp.eq.ref": _compare_refs, "cmp.ne.ref": _compare_refs, "cmp.nz.ref": _compare_refs, "assign.ref": _move_ref,
    "cast.any.ref": _move_ref, "discard.refs": _discard_refs, "block": _nothing, "trace": _nothing, "print": _nothing,
}  # fmt: skip
