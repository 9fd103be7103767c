"""The CRT's function registry, handles and modules behave as TVM's C runtime does."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdla.errors import FormatError
from nvdla.interop.containers.tvm.crt import (
    AVERAGE_ENTRY_BYTES,
    CrtError,
    CrtModule,
    CrtRuntime,
    CrtStatus,
    FuncRegistry,
    FunctionHandle,
    ModuleHandle,
    MutableFuncRegistry,
    decode_handle,
    encode_handle,
)


def test_a_registry_of_0_8_counts_in_one_byte():
    registry = FuncRegistry.parse(b"\x02Foo\0Bar\0\0")
    assert (registry.names, registry.count_bytes) == (["Foo", "Bar"], 1)
    assert registry.encode() == b"\x02Foo\0Bar\0\0"


def test_a_registry_of_0_9_counts_in_two():
    registry = FuncRegistry.parse(b"\x02\x00Foo\0Bar\0\0")
    assert (registry.names, registry.count_bytes) == (["Foo", "Bar"], 2)
    assert FuncRegistry.parse(b"\x00\x02Foo\0Bar\0\0", 2, "big").encode("big") == b"\x00\x02Foo\0Bar\0\0"


def test_the_empty_registry_finds_nothing():
    registry = FuncRegistry.parse(b"\0\0\0")
    with pytest.raises(CrtError) as caught:
        registry.lookup("foo")
    assert caught.value.status is CrtStatus.FUNCTION_NAME_NOT_FOUND
    with pytest.raises(CrtError) as caught:
        registry.by_index(0)
    assert caught.value.status is CrtStatus.FUNCTION_INDEX_INVALID


@pytest.mark.parametrize("text", [b"", b"\x03Foo\0Bar\0\0", b"\x02\0\0Foo\0\0", b"\x01"])
def test_a_count_that_disagrees_with_the_names_is_refused(text):
    with pytest.raises(FormatError, match="must be the number of names"):
        FuncRegistry.parse(text)


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12), max_size=40),
    st.sampled_from([1, 2]),
    st.sampled_from(["little", "big"]),
)
def test_names_survive_the_registry_string(names, width, order):
    text = FuncRegistry(names, (), width).encode(order)
    assert FuncRegistry.parse(text, width, order).names == names


def test_a_mutable_registry_takes_what_its_buffer_holds():
    """Two functions; the name of the second may fill what the first left, less the closing NUL."""
    for spare in range(AVERAGE_ENTRY_BYTES):
        registry = MutableFuncRegistry(AVERAGE_ENTRY_BYTES * 2 + spare)
        assert registry.set("abcdefghij", print) == 0
        with pytest.raises(CrtError) as caught:
            registry.set("b" * (10 + spare + 1), print)
        assert caught.value.status is CrtStatus.FUNCTION_REGISTRY_FULL
        assert registry.set("b" * 7, repr) == 1
        assert registry.by_index(registry.lookup("b" * 7)) is repr
        with pytest.raises(CrtError) as caught:
            registry.set("a", print)
        assert caught.value.status is CrtStatus.FUNCTION_REGISTRY_FULL


def test_a_function_is_replaced_only_on_request():
    registry = MutableFuncRegistry(100)
    registry.set("f", print)
    with pytest.raises(CrtError) as caught:
        registry.set("f", repr)
    assert caught.value.status is CrtStatus.FUNCTION_ALREADY_DEFINED
    assert registry.set("f", repr, override=True) == 0
    assert registry.by_index(0) is repr


@pytest.mark.parametrize("size", [0, AVERAGE_ENTRY_BYTES - 1])
def test_a_buffer_without_room_for_one_function_is_refused(size):
    with pytest.raises(CrtError) as caught:
        MutableFuncRegistry(size)
    assert caught.value.status is CrtStatus.BUFFER_TOO_SMALL


def test_handles_on_the_wire():
    assert encode_handle(2, 0) == 0x80028000  # the first global function, as recorded
    assert encode_handle(0, 0) == 0x80008000  # the first of the system library
    assert encode_handle(None, 5, "rfc") == 5
    assert encode_handle(3, 5, "rfc") == 0x80030005


@given(st.integers(0, 0x7FFF), st.integers(0, 0x7FFF), st.sampled_from(["landed", "rfc"]))
def test_handles_decode_to_what_they_were_made_of(module, function, layout):
    assert decode_handle(encode_handle(module, function, layout), layout) == (module, function)


@pytest.mark.parametrize("handle", [0, 0x8000, 0x80000000, 1 << 32, -1])
def test_a_handle_without_its_marks_is_refused(handle):
    with pytest.raises(FormatError):
        decode_handle(handle)


def runtime(**options) -> CrtRuntime:
    return CrtRuntime(system_library=lambda: CrtModule(FuncRegistry(["twice"], [lambda x: 2 * x])), **options)


def test_the_runtime_begins_with_the_functions_of_the_original_in_its_order():
    assert [
        runtime().get_global(name)
        for name in (
            "runtime.SystemLib",
            "tvm.rpc.server.ModuleGetFunction",
            "runtime.RPCTimeEvaluator",
            "tvm.rpc.server.GetCRTMaxPacketSize",
            "none",
        )
    ] == [0x80028000, 0x80028001, 0x80028002, 0x80028003, None]


def test_a_function_of_the_system_library_is_found_and_called():
    crt = runtime()
    library = crt.call(crt.get_global("runtime.SystemLib"))
    assert library == ModuleHandle(0x8000)
    function = crt.call(crt.get_global("tvm.rpc.server.ModuleGetFunction"), library, "twice", 0)
    assert function == FunctionHandle(0x80008000)
    assert crt.call(function.value, 21) == 42
    assert crt.call(crt.get_global("tvm.rpc.server.ModuleGetFunction"), library, "thrice", 0) is None


def test_modules_come_and_go_but_the_system_library_stays():
    crt = runtime()
    freed = []
    library = crt.call(crt.get_global("runtime.SystemLib"))
    module = crt.add_module(CrtModule(FuncRegistry(["f"], [lambda: 1]), on_free=lambda: freed.append(1)))
    handle = crt.get_function(module, "f")
    with pytest.raises(CrtError, match="modules: must be at most 2 at a time"):
        crt.add_module(CrtModule(FuncRegistry([])))
    crt.free_module(module)
    crt.free_module(library)
    assert freed == [1]
    assert crt.get_function(library, "twice") == 0x80008000
    for broken in (lambda: crt.call(handle), lambda: crt.free_module(module), lambda: crt.get_function(module, "f")):
        with pytest.raises(CrtError):
            broken()


def test_the_time_evaluator_returns_seconds_and_is_replaced_by_the_next():
    crt = runtime()
    calls = []
    module = crt.add_module(CrtModule(FuncRegistry(["f"], [calls.append])))
    make = crt.get_global("runtime.RPCTimeEvaluator")
    first = crt.call(make, module, "f", 1, 0, 3, 2, 0, 0, 0, "")
    second = crt.call(make, module, "f", 1, 0, 3, 2, 0, 0, 0, "")
    with pytest.raises(CrtError) as caught:
        crt.call(first.value, 7)
    assert caught.value.status is CrtStatus.TIME_EVALUATOR_BAD_HANDLE
    seconds = struct.unpack("<2d", crt.call(second.value, 7))
    assert calls == [7] * (1 + 3 * 2)
    assert all(0 <= s < 1 for s in seconds)


def test_a_time_evaluator_has_a_time_limit(monkeypatch):
    monkeypatch.setattr("nvdla.interop.containers.tvm.crt.MAX_EVALUATION_SECONDS", 0.0)
    crt = runtime()
    module = crt.add_module(CrtModule(FuncRegistry(["f"], [lambda: None])))
    timed = crt.call(crt.get_global("runtime.RPCTimeEvaluator"), module, "f", 1, 0, 1000, 1000, 0, 0, 0, "")
    with pytest.raises(CrtError, match="Request fewer calls"):
        crt.call(timed.value)
