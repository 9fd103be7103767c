"""The VM's interpreter: flow, calls, buffers, lists, limits; arithmetic against numpy; all of it against IREE."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.iree_assembler import Code, goto, module

from nvdla.errors import FormatError
from nvdla.interop.containers.vmfb import module as modules
from nvdla.interop.containers.vmfb.disassembler import disassemble, verify
from nvdla.interop.containers.vmfb.interpreter import MachineLimits, VirtualMachine
from nvdla.interop.containers.vmfb.values import VmBuffer, VmList, VmMemory, operation, round_f32, siphash, wrap

R0, R1, R2 = 0x8000, 0x8001, 0x8002
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def machine(*functions: Code, limits: MachineLimits | None = None, imports=None, **parts) -> VirtualMachine:
    parsed = modules.read(module(functions, **parts))
    assert [f.message for f in verify(parsed, strict=True)] == []
    return VirtualMachine(parsed, imports or {}, limits or MachineLimits())


def run(code: list, convention: str, arguments=(), **parts):
    return machine(Code("f", convention, [("block",), *code]), **parts).call("f", arguments)


def test_a_loop_counts_through_its_branches():
    total = Code(
        "f",
        "0i_I",
        [
            ("block",),
            ("const.i32.zero", 1),
            ("const.i64.zero", 2),
            ("const.i32", 1, 6),
            ("br", goto(1)),
            ("block",),
            ("cmp.lt.i32.s", 1, 0, 4),
            ("cond_br", 4, goto(2), goto(3)),
            ("block",),
            ("ext.i32.i64.s", 1, 8),
            ("add.i64", 2, 8, 2),
            ("add.i32", 1, 6, 1),
            ("br", goto(1)),
            ("block",),
            ("return", (2,)),
        ],
    )
    assert machine(total).call("f", [1000]) == [sum(range(1000))]


def test_a_branch_table_takes_the_default_out_of_range():
    table = Code(
        "f",
        "0i_i",
        [
            ("block",),
            ("const.i32", 10, 1),
            ("const.i32", 20, 2),
            ("const.i32", 30, 3),
            ("br_table", 0, (goto(1, (3, 4)), goto(1, (1, 4)), goto(1, (2, 4)))),
            ("block",),
            ("return", (4,)),
        ],
    )
    assert [machine(table).call("f", [n])[0] for n in (0, 1, 2, -1)] == [10, 20, 30, 30]


def test_calls_pass_and_return_pairs_of_registers():
    """64-bit arguments take even pairs of the callee's registers, in any order of types."""
    helper = Code("helper", "0IiI_Ii", [("block",), ("sub.i64", 0, 4, 0), ("return", (0, 2))], is_exported=False)
    outer = Code(
        "f",
        "0Ii_Ii",
        [
            ("block",),
            ("const.i64", 100, 6),
            ("call", 1, (6, 2, 0), (8, 10)),
            ("call", 1, (8, 10, 8), (12, 3)),
            ("return", (12, 3)),
        ],
    )
    assert machine(outer, helper).call("f", [1 << 40, 7]) == [0, 7]


def test_a_signature_with_unknown_letters_is_an_error_of_the_module():
    helper = Code("helper", "0i_?", [("block",), ("return", (0,))], is_exported=False)
    outer = Code("f", "0i_i", [("block",), ("call", 1, (0,), (0,)), ("return", (0,))])
    assert machine(outer, helper).call("f", [3]) == [3]  # each register counts for itself
    with pytest.raises(FormatError, match=r"'\?'"):
        machine(Code("f", "0i_?", [("block",), ("return", (0,))])).call("f", [3])


def test_registers_of_another_kind_than_the_signature_are_an_error():
    helper = Code("helper", "0r_v", [("block",), ("return", ())], is_exported=False)
    outer = Code("f", "0i_v", [("block",), ("call", 1, (0,), ()), ("return", ())])
    with pytest.raises(FormatError, match="must have the kind of"):
        machine(outer, helper).call("f", [3])
    with pytest.raises(FormatError, match="must have the kind of"):
        machine(Code("f", "0i_r", [("block",), ("return", (0,))])).call("f", [3])


def test_a_yieldable_call_continues_at_its_target():
    helper = Code("helper", "0i_i", [("block",), ("add.i32", 0, 0, 0), ("return", (0,))], is_exported=False)
    outer = Code("f", "0i_i", [("block",), ("call.yieldable", 1, (0,), 1, (3,)), ("block",), ("return", (3,))])
    assert machine(outer, helper).call("f", [21]) == [42]


def test_globals_keep_their_values_between_calls_and_start_as_zero():
    code = Code(
        "f",
        "0iI_iI",
        [
            ("block",),
            ("global.load.i32", 0, 4),
            ("global.load.i64", 8, 6),
            ("global.store.i32", 0, 0),
            ("global.store.i64", 8, 2),
            ("return", (4, 6)),
        ],
    )
    state = machine(code, global_bytes=16)
    assert state.call("f", [5, 1 << 50]) == [0, 0]
    assert state.call("f", [0, 0]) == [5, 1 << 50]


def test_initialisers_run_before_the_first_call():
    init = Code("__init", "0v_v", [("block",), ("const.i32", 7, 0), ("global.store.i32", 4, 0), ("return", ())])
    get = Code("get", "0v_i", [("block",), ("global.load.i32", 4, 0), ("return", (0,))])
    assert machine(init, get, global_bytes=8).call("get", []) == [7]


def test_buffers_count_offsets_in_elements():
    code = [
        ("const.i64", 32, 4),
        ("const.i32", 16, 6),
        ("buffer.alloc", 4, 6, R0),
        ("const.i64", 3, 8),
        ("buffer.store.i32", R0, 8, 0),
        ("const.i64", 12, 10),
        ("buffer.load.i8.s", R0, 10, 12),
        ("buffer.load.i32", R0, 8, 13),
        ("buffer.length", R0, 14),
        ("return", (12, 13, 14)),
    ]
    assert run(code, "0i_iiI", [-2]) == [-2, -2, 32]


def test_references_are_moved_if_the_code_has_the_move_bit():
    moved = 0x4000
    code = [
        ("const.ref.rodata", 0, R0),
        ("assign.ref", R0 | moved, R1),
        ("cmp.nz.ref", R0, 0),
        ("cmp.nz.ref", R1, 1),
        ("return", (0, 1)),
    ]
    assert run(code, "0v_ii", rodata=[b"abc"]) == [0, 1]


def test_read_only_data_cannot_be_written():
    code = [("const.ref.rodata", 0, R0), ("const.i64.zero", 2), ("buffer.store.i8", R0, 2, 0), ("return", ())]
    with pytest.raises(FormatError, match="buffer: must be writable"):
        run(code, "0i_v", [1], rodata=[b"abc"])


def test_lists_grow_convert_and_check_their_bounds():
    code = [
        ("list.alloc", 0, 0, R0),
        ("list.resize", R0, 0),
        ("const.i32", 1, 1),
        ("list.set.i64", R0, 1, 2),
        ("list.get.i32", R0, 1, 4),
        ("list.size", R0, 5),
        ("return", (4, 5)),
    ]
    assert run(code, "0iI_ii", [3, (1 << 40) + 5]) == [5, 3]
    with pytest.raises(FormatError, match="must be below 1, got 1"):
        run(code, "0iI_ii", [1, 0])


def test_imports_are_called_with_their_types():
    seen = []
    code = Code("f", "0iIfFr_I", [("block",), ("call", 1 << 31, (0, 2, 4, 6, R0), (8,)), ("return", (8,))])
    provided = {"host.sum": lambda a, b, c, d, e: seen.append(e) or int(a + b + c + d)}
    state = VirtualMachine(modules.read(module([code], imports=[("host.sum", "0iIfFr_I")])), provided)
    buffer = VmBuffer(bytearray(b"x"))
    assert state.call("f", [1, 2, 3.0, 4.0, buffer]) == [10] and seen == [buffer]


@pytest.mark.parametrize(("name", "why"), [("hal.device.allocator", "needs a device"), ("custom.f", "not provided")])
def test_a_missing_import_is_named_when_it_is_reached(name, why):
    code = Code(
        "f",
        "0i_i",
        [
            ("block",),
            ("cond_br", 0, goto(1), goto(2)),
            ("block",),
            ("call", 1 << 31, (0,), (0,)),
            ("return", (0,)),
            ("block",),
            ("return", (0,)),
        ],
    )
    state = VirtualMachine(modules.read(module([code], imports=[(name, "0i_i")])))
    assert state.call("f", [0]) == [0]
    with pytest.raises(FormatError, match=why) as refusal:
        state.call("f", [1])
    assert name in str(refusal.value)


def test_vm_fail_stops_with_its_message_unless_its_status_is_zero():
    code = [("fail", 0, "told to"), ("return", (0,))]
    with pytest.raises(FormatError, match="status 3: told to"):
        run([("fail", 0, "told to")], "0i_i", [3])
    with pytest.raises(FormatError):
        run(code, "0i_i", [3])


@pytest.mark.parametrize(
    ("code", "convention", "limits", "why"),
    [
        ([("br", goto(0))], "0v_v", MachineLimits(instructions=1000), "option instructions"),
        ([("call", 0, (), ()), ("return", ())], "0v_v", MachineLimits(depth=50), "option depth"),
        (
            [("const.i64", 1 << 40, 0), ("const.i32", 1, 2), ("buffer.alloc", 0, 2, R0), ("return", ())],
            "0v_v",
            MachineLimits(),
            "option memory",
        ),
        ([("const.i32", -1, 0), ("list.alloc", 0, 0, R0), ("return", ())], "0v_v", MachineLimits(), "option memory"),
        (
            [("const.i64", -1, 0), ("const.i32", 1, 2), ("buffer.alloc", 0, 2, R0), ("return", ())],
            "0v_v",
            MachineLimits(),
            "length: must not be negative, got -1",
        ),
    ],
)
def test_limits_end_what_would_not_end(code, convention, limits, why):
    with pytest.raises(FormatError, match=why):
        run(code, convention, limits=limits)


def test_memory_comes_back_when_nothing_refers_to_it():
    loop = Code(
        "f",
        "0i_i",
        [
            ("block",),
            ("const.i64", 1 << 16, 2),
            ("const.i32", 1, 4),
            ("br", goto(1)),
            ("block",),
            ("buffer.alloc", 2, 4, R0),
            ("sub.i32", 0, 4, 0),
            ("cond_br", 0, goto(1), goto(2)),
            ("block",),
            ("return", (0,)),
        ],
    )
    assert machine(loop, limits=MachineLimits(memory=1 << 18)).call("f", [100]) == [0]


def test_large_fills_count_as_many_instructions():
    loop = Code(
        "f",
        "0v_v",
        [
            ("block",),
            ("const.i64", 1 << 20, 2),
            ("const.i32", 1, 4),
            ("const.i64.zero", 6),
            ("buffer.alloc", 2, 4, R0),
            ("br", goto(1)),
            ("block",),
            ("buffer.fill.i8", R0, 6, 2, 4),
            ("br", goto(1)),
        ],
    )
    state = machine(loop, limits=MachineLimits(instructions=200_000))
    with pytest.raises(FormatError, match="option instructions"):
        state.call("f", [])


def test_division_by_zero_is_an_error_not_a_crash():
    with pytest.raises(FormatError, match="division by zero"):
        run([("div.i32.s", 0, 1, 0), ("return", (0,))], "0ii_i", [1, 0])


@pytest.mark.parametrize(("arguments", "why"), [([], "must get 1 arguments"), ([1, 2], "must get 1 arguments")])
def test_the_count_of_arguments_is_checked(arguments, why):
    with pytest.raises(FormatError, match=why):
        run([("return", (0,))], "0i_i", arguments)


def test_broken_code_is_found_by_verification_and_by_running():
    def findings(instructions, **parts) -> str:
        parsed = modules.read(module([Code("f", "0v_v", instructions, **parts)]))
        with pytest.raises(FormatError):
            VirtualMachine(parsed, limits=MachineLimits(instructions=10_000)).call("f", [])
        return " ".join(f.message for f in verify(parsed))

    assert "got 40" in findings([("block",), ("const.i32", 1, 40), ("return", ())])
    assert "got 15" in findings([("block",), ("const.i64", 1, 15), ("return", ())])
    assert "reference register: must be below 8, got 9" in findings(
        [("block",), ("const.ref.zero", 0x8009), ("return", ())]
    )
    assert "function: must be below 1, got 5" in findings([("block",), ("call", 5, (), ()), ("return", ())])
    assert "must end with the end of a block" in findings([("block",), ("const.i32", 1, 2)])
    assert "got 3" in findings([("block",), ("const.ref.rodata", 3, R0), ("return", ())])


# -- arithmetic --------------------------------------------------------------------------------------------------------


@given(INT32, INT32)
def test_i32_arithmetic_is_that_of_numpy(a, b):
    x, y = np.int32(a), np.int32(b)
    with np.errstate(over="ignore"):
        for name, value in {"add": x + y, "sub": x - y, "mul": x * y, "and": x & y, "or": x | y, "xor": x ^ y}.items():
            assert wrap(operation(f"{name}.i32")(a, b), 32) == value
        assert operation("cmp.lt.i32.u")(a, b) == int(np.uint32(a & 0xFFFFFFFF) < np.uint32(b & 0xFFFFFFFF))
        assert wrap(operation("shr.i32.u")(a, b), 32) == np.int32(np.uint32(a & 0xFFFFFFFF) >> np.uint32(b & 31))
        assert wrap(operation("shl.i32")(a, b), 32) == np.int32(x << np.int32(b & 31))
    if b not in (0, -1):
        assert operation("div.i32.s")(a, b) == int(math.copysign(1, a) * math.copysign(1, b)) * (abs(a) // abs(b))
        assert operation("rem.i32.s")(a, b) == int(math.fmod(a, b))


@given(INT64, INT64)
def test_i64_arithmetic_is_that_of_numpy(a, b):
    x, y = np.int64(a), np.int64(b)
    with np.errstate(over="ignore"):
        for name, value in {"add": x + y, "sub": x - y, "mul": x * y}.items():
            assert wrap(operation(f"{name}.i64")(a, b), 64) == value
    assert operation("max.i64.u")(a, b) % (1 << 64) == max(a % (1 << 64), b % (1 << 64))
    assert operation("ctlz.i64")(a) == 64 - (a % (1 << 64)).bit_length()


@given(st.floats(width=32), st.floats(width=32))
def test_f32_arithmetic_is_that_of_numpy(a, b):
    x, y = np.float32(a), np.float32(b)
    with np.errstate(all="ignore"):
        for name, value in {"add": x + y, "sub": x - y, "mul": x * y, "div": x / y}.items():
            ours = round_f32(operation(f"{name}.f32")(a, b))
            assert struct.pack("<f", ours) == struct.pack("<f", value) or (ours != ours and value != value)


@given(st.floats(-1e9, 1e9, width=32))
def test_floats_become_integers_by_rounding_half_away(a):
    assert operation("cast.f32.si32")(a) == int(math.copysign(math.floor(abs(a) + 0.5), a))


def test_the_traps_of_the_reference():
    assert operation("cast.f32.si32")(-3.99) == -4
    assert wrap(operation("abs.i32")(-(1 << 31)), 32) == -(1 << 31)
    assert operation("cmp.ne.f32.o")(math.nan, 1.0) == 1
    assert operation("cast.f32.si32")(math.nan) & 0xFFFFFFFF == 0
    assert operation("cast.f64.si32")(16777217.0) == 16777216


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_special_cases_of_floats_are_those_of_c(kind):
    """Annex F of C; round-half-even loses the sign of -0.5, as the reference does."""
    power, even = operation(f"pow.{kind}"), operation(f"round.{kind}.even")
    infinity, nan = math.inf, math.nan
    cases = [
        (-infinity, 0.5, infinity), (-0.0, 0.5, 0.0), (-0.0, -1.0, -infinity), (-0.0, -2.0, infinity),
        (0.0, -1.0, infinity), (-2.0, 1025.0, -infinity), (-2.0, 1026.0, infinity), (-8.0, 1 / 3, nan),
        (nan, 0.0, 1.0), (1.0, nan, 1.0), (-1.0, infinity, 1.0), (-infinity, -3.0, -0.0), (-infinity, 3.0, -infinity),
        (-0.0, -infinity, infinity), (0.5, -infinity, infinity), (2.0, nan, nan),
    ]  # fmt: skip
    for base, exponent, result in cases:
        assert repr(power(base, exponent)) == repr(result), (base, exponent)
    for value, result in ((-0.5, 0.0), (0.5, 0.0), (-0.3, -0.0), (-0.0, -0.0), (-1.5, -2.0), (2.5, 2.0), (-2.5, -2.0)):
        assert repr(even(value)) == repr(result), value
    for name in ("log", "log2", "log10", "log1p", "exp", "exp2", "expm1", "sqrt", "rsqrt", "sin", "cos", "tanh"):
        for value in (0.0, -0.0, -1.0, -2.0, infinity, -infinity, nan, 1e4):
            operation(f"{name}.{kind}")(value)  # an answer, never a Python exception


@pytest.mark.parametrize(
    ("element", "value", "kind", "result"),
    [
        ("i64", (1 << 40) + 5, "i32", 5),
        ("i8", -129, "i32", 127),
        ("?", -(1 << 31), "i64", -(1 << 31)),
        ("f32", 0.1, "f64", 0.10000000149011612),
        ("?", 0.1, "f32", 0.10000000149011612),
        ("f32", 1e300, "f64", math.inf),
        *((element, value, "i32", 0) for element in ("?", "f64", "i64") for value in (1.5, math.inf, math.nan, 3e9)),
        *((element, 7, "f64", 0.0) for element in ("?", "f32", "i32")),
    ],
)
def test_lists_convert_among_integers_and_among_floats_and_give_0_between_them(element, value, kind, result):
    """As IREE's runtime: its lists know no way from a float to an integer, nor back."""
    held = VmList(element, VmMemory(1000))
    held.resize(1)
    held.set(0, value)
    assert repr(held.get(0, kind)) == repr(result)


def test_a_number_in_a_list_is_no_reference():
    held = VmList("?", VmMemory(1000))
    held.resize(2)
    held.set(0, 7)
    assert held.get(1, None) is None
    with pytest.raises(FormatError, match="list element 0: must be a reference"):
        held.get(0, None)
    with pytest.raises(FormatError, match="list element 1: must be a number"):
        held.get(1, "i32")


def test_lists_nested_without_end_are_results_like_others():
    inner = None
    memory = VmMemory(1 << 28)
    for _ in range(100_000):
        outer = VmList("?", memory)
        outer.resize(1)
        outer.set(0, inner)
        inner = outer
    assert str(inner) == "!vm.list<?> of 1 elements"
    del inner, outer
    assert memory.used == 0


def test_verify_refuses_too_few_registers_for_the_arguments():
    """As the interpreter does, which would have nowhere to put them."""
    code = [("block",), ("return", ())]
    for convention, registers, refs, fits in (("0iI_v", 4, 0, True), ("0iI_v", 3, 0, False), ("0r_v", 4, 0, False)):
        found = verify(modules.read(module([Code("f", convention, code, registers, refs)])))
        assert (not found) == fits, (convention, found)


def test_conversions_between_floats_need_the_feature_of_f64_alone():
    for mnemonic, wanted in (("trunc.f64.f32", "EXT_F64"), ("ext.f32.f64", "EXT_F64"), ("add.f32", "EXT_F32")):
        operands = (0, 2, 4) if mnemonic == "add.f32" else (0, 4)
        code = Code("f", "0v_v", [("block",), (mnemonic, *operands), ("return", ())], requirements=0)
        found = verify(modules.read(module([code])), strict=True)
        assert [f.message.split()[3] for f in found] == [wanted], mnemonic


def test_stores_are_shown_as_iree_shows_them():
    stored = [("block",), ("buffer.store.i32", 0, 0, 2), ("return", ())]
    assert "vm.buffer.store.i32 %i2, %r0, %i0:1" in disassemble(modules.read(module([Code("f", "0v_v", stored)])))


def test_the_hash_is_siphash_2_4():
    """First vectors of the SipHash paper's appendix (key and message 00 01 02 ...)."""
    assert siphash(b"") == 0x726FDB47DD0E0E31
    assert siphash(bytes(range(15))) == 0xA129CA6149BE45E5


VM_SOURCE = """
vm.module @module {
  vm.rodata private @data dense<[1, 2, 3, 4, 250, 251, 252, 253, 254, 255]> : vector<10xui8>
  vm.func private @helper(%a: i64, %b: i32, %c: i64) -> (i64, i32) attributes {inlining_policy = #util.inline.never} {
    %0 = vm.sub.i64 %a, %c : i64
    %1 = vm.add.i32 %b, %b : i32
    vm.return %0, %1 : i64, i32
  }
  vm.export @calls
  vm.func @calls(%a: i64, %b: i32) -> (i64, i32) {
    %0:2 = vm.call @helper(%a, %b, %a) : (i64, i32, i64) -> (i64, i32)
    %1:2 = vm.call @helper(%0#0, %0#1, %a) : (i64, i32, i64) -> (i64, i32)
    vm.return %1#0, %1#1 : i64, i32
  }
  vm.export @mixed
  vm.func @mixed(%a: i32, %b: i64, %c: f32, %d: f64, %e: i64) -> (f64, i64, f32, i32, i64) {
    vm.return %d, %b, %c, %a, %e : f64, i64, f32, i32, i64
  }
  vm.export @rodata
  vm.func @rodata(%i: i64) -> (i32, i32, i32, i64, i64) {
    %b = vm.const.ref.rodata @data : !vm.buffer
    %0 = vm.buffer.load.i8.s %b[%i] : !vm.buffer -> i32
    %1 = vm.buffer.load.i8.u %b[%i] : !vm.buffer -> i32
    %2 = vm.buffer.load.i16.s %b[%i] : !vm.buffer -> i32
    %n = vm.buffer.length %b : !vm.buffer -> i64
    %c0 = vm.const.i64 0
    %h = vm.buffer.hash %b, %c0, %n : !vm.buffer -> i64
    vm.return %0, %1, %2, %n, %h : i32, i32, i32, i64, i64
  }
  vm.export @table
  vm.func @table(%i: i32) -> (i32, i64, f32) {
    %c10 = vm.const.i32 10
    %c30 = vm.const.i32 30
    %l10 = vm.const.i64 100000000000
    %l20 = vm.const.i64 200000000000
    %s = vm.switch.i32 %i[%c10] else %c30 : i32
    %sl = vm.switch.i64 %i[%l10] else %l20 : i64
    %f1 = vm.const.f32 1.5
    %f2 = vm.const.f32 2.5
    %sf = vm.select.f32 %i, %f1, %f2 : f32
    vm.br_table %i { default: ^bb1(%s : i32), 0: ^bb2 }
  ^bb1(%x: i32):
    vm.return %x, %sl, %sf : i32, i64, f32
  ^bb2:
    %q = vm.add.i32 %s, %c30 : i32
    vm.br ^bb1(%q : i32)
  }
  vm.export @casts
  vm.func @casts(%a: f32, %b: i64) -> (i32, i32, i64, f32, f64) {
    %0 = vm.cast.f32.si32 %a : f32 -> i32
    %1 = vm.cast.f32.ui32 %a : f32 -> i32
    %2 = vm.cast.f32.si64 %a : f32 -> i64
    %3 = vm.cast.ui64.f32 %b : i64 -> f32
    %4 = vm.cast.si64.f64 %b : i64 -> f64
    vm.return %0, %1, %2, %3, %4 : i32, i32, i64, f32, f64
  }
  vm.export @lists
  vm.func @lists(%a: i64, %b: f64) -> (i32, f64, i32, f32, i64, f64) {
    %c0 = vm.const.i32 0
    %c1 = vm.const.i32 1
    %c2 = vm.const.i32 2
    %any = vm.list.alloc %c2 : (i32) -> !vm.list<?>
    vm.list.resize %any, %c2 : (!vm.list<?>, i32)
    vm.list.set.i64 %any, %c0, %a : (!vm.list<?>, i32, i64)
    vm.list.set.f64 %any, %c1, %b : (!vm.list<?>, i32, f64)
    %0 = vm.list.get.i32 %any, %c0 : (!vm.list<?>, i32) -> i32
    %1 = vm.list.get.f64 %any, %c0 : (!vm.list<?>, i32) -> f64
    %2 = vm.list.get.i32 %any, %c1 : (!vm.list<?>, i32) -> i32
    %3 = vm.list.get.f32 %any, %c1 : (!vm.list<?>, i32) -> f32
    %floats = vm.list.alloc %c2 : (i32) -> !vm.list<f32>
    vm.list.resize %floats, %c2 : (!vm.list<f32>, i32)
    vm.list.set.f64 %floats, %c0, %b : (!vm.list<f32>, i32, f64)
    %4 = vm.list.get.i64 %floats, %c0 : (!vm.list<f32>, i32) -> i64
    %5 = vm.list.get.f64 %floats, %c0 : (!vm.list<f32>, i32) -> f64
    vm.return %0, %1, %2, %3, %4, %5 : i32, f64, i32, f32, i64, f64
  }
  vm.export @floats
  vm.func @floats(%a: f32, %b: f32) -> (f32, f32, f32, f32, i32) {
    %0 = vm.fma.f32 %a, %b, %a : f32
    %1 = vm.rem.f32 %a, %b : f32
    %2 = vm.min.f32 %a, %b : f32
    %3 = vm.round.f32.even %a : f32
    %4 = vm.cmp.ne.f32.o %a, %b : f32
    vm.return %0, %1, %2, %3, %4 : f32, f32, f32, f32, i32
  }
}
"""
JOBS = [
    ("lists", ["1099511627781", "0.1"]),
    ("lists", ["-1", "-inf"]),
    ("lists", ["7", "3000000000.5"]),
    ("calls", ["1234567890123", "7"]),
    ("mixed", ["1", "-2", "3.5", "-4.25", "5000000000"]),
    ("rodata", ["0"]),
    ("rodata", ["4"]),
    ("table", ["0"]),
    ("table", ["1"]),
    ("table", ["-1"]),
    *(("casts", [a, b]) for a, b in [("-3.99", "-1"), ("3e9", "1234567890123"), ("2.5", "-9223372036854775808")]),
    *(("floats", [a, b]) for a, b in [("5.5", "2"), ("nan", "1"), ("-2.5", "inf"), ("1e30", "1e30")]),
]


def test_iree_and_the_interpreter_agree(iree_python, tmp_path):
    """The compiler and the runtime of the package index, on one module with every kind of instruction."""
    import subprocess
    from pathlib import Path

    tools = Path(iree_python).parent
    if not (tools / "iree-compile").exists():
        pytest.skip("iree-base-compiler is not installed (extra `interop`)")
    source, compiled = tmp_path / "vm.mlir", tmp_path / "vm.vmfb"
    source.write_text(VM_SOURCE)
    subprocess.run(
        [
            tools / "iree-compile",
            "--compile-mode=vm",
            source,
            "-o",
            compiled,
            "--iree-vm-bytecode-module-output-format=flatbuffer-binary",
        ],
        check=True,
        timeout=120,
    )
    from nvdla.interop.containers import registry

    container = registry.open(compiled)
    assert container.verify() == []
    for mode in ("prefixed", "zip"):
        other = tmp_path / f"{mode}.vmfb"
        other.write_bytes(container.convert(container.format, {"wrapping": mode}))
        done = subprocess.run(
            [tools / "iree-run-module", f"--module={other}", "--function=table", "--input=1"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert "result[0]: i32=30" in done.stdout
    for function, arguments in JOBS:
        done = subprocess.run(
            [
                tools / "iree-run-module",
                f"--module={compiled}",
                f"--function={function}",
                *(f"--input={a}" for a in arguments),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        theirs = [line.split("=", 1)[1] for line in done.stdout.splitlines() if line.startswith("result[")]
        ours = container.call(function, arguments)["results"]
        for result, text in zip(ours, theirs, strict=True):
            if result["type"][0] == "i":
                assert str(result["value"]) == text, (function, arguments)
            else:
                assert result["value"] == pytest.approx(float(text), rel=1e-5, nan_ok=True), (function, arguments)
