"""Every set of instructions gives the sums of the tile: those of this processor here, others under an emulator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from nvdla.errors import ConfigError
from nvdla.kernels.fast import dot_layout
from nvdla.kernels.fast.dot_layout import (
    ALU,
    CEILING,
    EPILOGUE,
    FLIP,
    FLOOR,
    HALF,
    HALVES,
    KERNELS,
    MATRIX_PIXELS,
    NARROW_PIXELS,
    NARROW_VECTORS,
    OFFSET,
    PIXELS,
    PLACES,
    ROUNDING,
    ROW_STRIDE,
    SCALE,
    SHIFT,
    VECTORS,
    WIDE,
)
from nvdla.kernels.jit import processor

llvm = pytest.importorskip("llvmlite.binding")
try:
    HERE = processor.sets_of(llvm.get_host_cpu_features())
    if "amx" in HERE and not processor._may_use_matrices():
        HERE.remove("amx")
except RuntimeError:
    HERE = []

here = pytest.mark.parametrize("instructions", HERE or [pytest.param("", marks=pytest.mark.skip("no set here"))])
shapes = pytest.mark.parametrize("pixels, vectors", [(PIXELS, VECTORS), (NARROW_PIXELS, NARROW_VECTORS), (1, VECTORS)])


def compiled(pixels, vectors, instructions):
    import numba

    from nvdla.kernels.fast.dot_code import tile_intrinsic

    tile = tile_intrinsic(pixels, vectors, instructions)

    @numba.njit
    def run(data, places, taps, steps, weights, flip, sums):
        tile(
            data.ctypes.data, places.ctypes.data, taps.ctypes.data, taps.size, steps, weights.ctypes.data, flip,
            sums.ctypes.data, 0,
        )  # fmt: skip

    return run


def aligned(shape):
    size = int(np.prod(shape))
    raw = np.empty(size + 64, np.int8)
    return raw[-raw.ctypes.data % 64 :][:size].reshape(shape)


def true_sums(data, places, taps, steps, weights, flip):
    """By the tile's definition, in 64 bits."""
    taken = (data ^ np.uint8(flip & 255)).astype(np.int64)
    at = (places[:, None] + (taps[:, None] + np.arange(4 * steps)).reshape(-1)).astype(np.int64)
    return taken[at] @ weights.transpose(0, 1, 3, 2).reshape(-1, KERNELS).astype(np.int64)


@here
@shapes
@pytest.mark.parametrize("flip", [0, FLIP])
def test_sums_are_exact_for_random_and_extreme_operands(instructions, pixels, vectors, flip):
    run, random = compiled(pixels, vectors, instructions), np.random.default_rng(3)
    taps, steps = np.array([0, 40, 16], np.int64), 5
    places = random.permutation(100)[:pixels].astype(np.int64)
    for low, high, least, most in (
        (0, 256, -128, 128),
        (255, 256, -128, -127),
        (255, 256, 127, 128),
        (0, 1, -128, 128),
    ):
        data = random.integers(low, high, 400).astype(np.uint8) ^ np.uint8(flip & 255)
        weights = aligned((taps.size, steps, KERNELS, 4))
        weights[:] = random.integers(least, most, weights.shape)
        sums = np.full((pixels, KERNELS), 7, np.int32)
        run(data, places, taps, steps, weights, flip, sums)
        known = 16 * vectors
        assert (sums[:, :known] == true_sums(data, places, taps, steps, weights, flip)[:, :known]).all()
        assert (sums[:, known:] == 7).all()


@here
@pytest.mark.parametrize("byte", range(4))
def test_every_pair_of_operands_in_every_byte_of_a_word(instructions, byte):
    run = compiled(1, VECTORS, instructions)
    taps, places, sums = np.zeros(1, np.int64), np.zeros(1, np.int64), np.empty((1, KERNELS), np.int32)
    weights = aligned((1, 1, KERNELS, 4))
    data = np.zeros(8, np.uint8)
    for first in range(-128, 128, KERNELS):
        row = np.arange(first, first + KERNELS)
        weights[:] = -1  # meets zeros
        weights[0, 0, :, byte] = row
        for value in range(256):
            data[byte] = value
            run(data, places, taps, 1, weights, 0, sums)
            assert (sums[0] == value * row).all()


matrices = pytest.mark.skipif("amx" not in HERE, reason="needs a processor with AMX")


def multiplied(data, places, taps, quads, weights, flip, out, epilogue=None):
    """Run the tile of products of matrices."""
    import numba

    from nvdla.kernels.fast.dot_matrix_code import begin_matrices, dot_matrix_tile, end_matrices

    @numba.njit
    def run(data, places, taps, quads, weights, flip, out, epilogue):
        begin_matrices()
        dot_matrix_tile(data, places.ctypes.data, taps.ctypes.data, taps.size, quads, weights, flip, out, epilogue)
        end_matrices()

    fields = 0 if epilogue is None else epilogue.ctypes.data
    run(data.ctypes.data, places, taps, quads, weights.ctypes.data, flip, out.ctypes.data, fields)


def random_operands(count, quads, flip, extreme=False):
    random = np.random.default_rng(count)
    taps, places = random.permutation(200)[:count].astype(np.int64), random.permutation(300)[:MATRIX_PIXELS]
    last = places.max() + taps.max() + 4 * quads  # the last byte that counts is the last one
    data = random.integers(0, 256, last).astype(np.uint8)
    weights = aligned((count, quads, KERNELS, 4))
    weights[:] = random.integers(-128, 128, weights.shape)
    if extreme:
        data[:], weights[:] = 255 ^ flip & 255, -128
    return data, places.astype(np.int64), taps, quads, weights, flip


@matrices
@pytest.mark.parametrize("count, quads", [(1, 16), (2, 8), (3, 8), (1, 24), (3, 24), (9, 8), (64, 16), (15, 8)])
@pytest.mark.parametrize("flip", [0, FLIP])
@pytest.mark.parametrize("extreme", [False, True])
def test_products_of_matrices_are_exact_for_all_numbers_of_taps_and_channels(count, quads, flip, extreme):
    operands = random_operands(count, quads, flip, extreme)
    sums = np.zeros((MATRIX_PIXELS, KERNELS), np.int32)
    multiplied(*operands, sums)
    assert (sums == true_sums(*operands)).all()


@matrices
@pytest.mark.parametrize("kernels", [KERNELS, KERNELS - HALF, HALF])
def test_products_of_matrices_go_through_the_converter(kernels):
    operands = random_operands(5, 8, 0)
    alu = np.random.default_rng(1).integers(-20_000, 20_000, KERNELS).astype(np.int32)
    epilogue = np.zeros(EPILOGUE, np.int64)
    epilogue[[ALU, FLOOR, CEILING, OFFSET, SCALE]] = alu.ctypes.data, -300_000, 300_000, 5, 3
    epilogue[[ROUNDING, SHIFT, HALVES, WIDE, ROW_STRIDE]] = 1 << 11, 12, kernels // HALF, 0, KERNELS
    epilogue[PLACES : PLACES + KERNELS // HALF] = HALF * np.arange(KERNELS // HALF)
    out = np.full((MATRIX_PIXELS, KERNELS), 99, np.int8)
    multiplied(*operands, out, epilogue)
    product = (np.clip(true_sums(*operands) + alu, -300_000, 300_000) - 5) * 3
    true = np.clip((product + (1 << 11) - (product < 0)) >> 12, -128, 127)
    assert (out[:, :kernels] == true[:, :kernels]).all()
    assert (out[:, kernels:] == 99).all()


C_MAIN = r"""
#include <stdint.h>
#include <stdio.h>
#define ROWS @ROWS@
#define KNOWN @KNOWN@
enum {TAPS = 3, STEPS = 5};
enum {@FIELDS@};
void tile(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
void finish(int64_t, int64_t, int64_t, int64_t, int64_t);
static uint8_t data[512];
static int8_t weights[TAPS][STEPS][64][4] __attribute__((aligned(64)));
static int8_t out[ROWS * 64], other[ROWS * 64];
static int32_t sums[ROWS][64], alu[64];
static union {int64_t whole[EPILOGUE]; double number[EPILOGUE];} epilogue;
static double factors[64];
static float estimates[64];
static int64_t places[ROWS], taps[TAPS] = {0, 40, 16};
static uint32_t seed = 1;
static uint32_t next(void) { return (seed = seed * 1664525u + 1013904223u) >> 8; }
static int64_t shifted(int64_t x, int shift) {
    int64_t half = 1ll << (shift - 1);
    return x < 0 ? -((half - x) >> shift) : (x + half) >> shift;
}
static int64_t limited(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }
int main(void) {
    for (int round = 0; round < 60; round++) {
        int64_t flip = round & 1 ? 0x80808080 : 0, low = -30000, high = 30000, offset = 5, scale = 3, shift = 9;
        for (int i = 0; i < 512; i++) data[i] = (round % 3 ? next() : 255) ^ (flip & 255);
        int8_t *flat = &weights[0][0][0][0];
        for (unsigned i = 0; i < sizeof weights; i++) flat[i] = round % 4 ? next() : -128;
        for (int p = 0; p < ROWS; p++) places[p] = next() % 300;
        for (int k = 0; k < 64; k++) alu[k] = next() % 20000 - 10000;
        int64_t *e = epilogue.whole;
        e[ALU] = (int64_t)alu, e[FLOOR] = low, e[CEILING] = high, e[OFFSET] = offset, e[SCALE] = scale;
        e[ROUNDING] = 1 << (shift - 1), e[SHIFT] = shift, e[HALVES] = KNOWN / 8, e[WIDE] = 1, e[ROW_STRIDE] = 64;
        for (int h = 0; h < 8; h++) e[PLACES + h] = e[OTHER_PLACES + h] = 8 * h;
        tile((int64_t)data, (int64_t)places, (int64_t)taps, TAPS, STEPS, (int64_t)weights, flip, (int64_t)sums, 0);
        tile((int64_t)data, (int64_t)places, (int64_t)taps, TAPS, STEPS, (int64_t)weights, flip, (int64_t)out,
             (int64_t)epilogue.whole);
        for (int p = 0; p < ROWS; p++)
            for (int k = 0; k < KNOWN; k++) {
                int64_t sum = 0;
                for (int t = 0; t < TAPS; t++)
                    for (int i = 0; i < 4 * STEPS; i++)
                        sum += (data[places[p] + taps[t] + i] ^ (flip & 255)) * weights[t][i / 4][k][i % 4];
                if (sum != sums[p][k]) { printf("sum %d %d: %d, not %ld\n", p, k, sums[p][k], (long)sum); return 1; }
                int64_t x = sum + alu[k];
                x = ((x < low ? low : x > high ? high : x) - offset) * scale;
                x = (x + (1 << (shift - 1)) - (x < 0)) >> shift;
                x = x < -128 ? -128 : x > 127 ? 127 : x;
                int8_t y = out[p * 64 + k];
                if (x != y) { printf("out %d %d: %d, not %ld\n", p, k, y, (long)x); return 1; }
            }
        double converter = 20090 / 536870912.;
        for (int i = 0; i < ROWS * 64; i++) other[i] = next();
        for (int k = 0; k < 64; k++) factors[k] = (500 + 9 * k) / 16., estimates[k] = factors[k] * converter;
        e[FACTORS] = (int64_t)factors, e[ESTIMATE] = (int64_t)estimates, e[OTHER_STRIDE] = 64;
        epilogue.number[LOWEST] = -2147483648., epilogue.number[POWER] = 16384, epilogue.number[FACTOR] = converter;
        epilogue.number[SHIFTED] = 7 * converter, epilogue.number[TIMES] = 16384 * converter;
        epilogue.number[BOTTOM] = -7 * converter, epilogue.number[TOP] = 127;
        epilogue.number[DECIDES] = round & 2 ? 0.4999 : 0;
        finish((int64_t)sums, ROWS, (int64_t)e, (int64_t)other, (int64_t)out);
        for (int p = 0; p < ROWS; p++)
            for (int k = 0; k < KNOWN; k++) {
                int64_t x = shifted((int64_t)(sums[p][k] + alu[k]) * (500 + 9 * k), 4) + other[p * 64 + k] * 16384ll;
                x = limited(shifted((limited(x, 0, 2147483647) - 7) * 20090, 29), -128, 127);
                int8_t y = out[p * 64 + k];
                if (x != y) { printf("end %d %d: %d, not %ld\n", p, k, y, (long)x); return 1; }
            }
    }
    puts("equal");
    return 0;
}
"""


def tile_of(pixels, vectors, instructions):
    from nvdla.kernels.fast.dot_code import emit_tile

    return partial(emit_tile, pixels=pixels, vectors=vectors, instructions=instructions)


def assembled(triple, cpu, features, emit_tile):
    """A target machine and the module of a tile and of the epilogue of sums in memory, as C functions."""
    from llvmlite import ir

    from nvdla.kernels.fast.dot_code import emit_epilogue

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip(f"this LLVM knows no {triple}")
    module = ir.Module()
    module.triple = triple
    for name, numbers, emit in (("tile", 9, emit_tile), ("finish", 5, emit_epilogue)):
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * numbers), name)
        builder = ir.IRBuilder(function.append_basic_block())
        emit(builder, args=list(function.args))
        builder.ret_void()
    return target.create_target_machine(cpu, features, opt=3, reloc="pic"), llvm.parse_assembly(str(module))


@shapes
@pytest.mark.parametrize(
    "triple, cpu, features, instructions, compiler, emulator",
    [
        pytest.param(
            "aarch64-linux-gnu",
            "cortex-a76",
            "+dotprod",
            "neon",
            "aarch64-linux-gnu-gcc",
            "qemu-aarch64 -cpu max",
            id="neon",
        ),
        pytest.param("x86_64-linux-gnu", "haswell", "", "avx2", "gcc", "qemu-x86_64 -cpu Haswell", id="haswell"),
    ],
)
def test_other_processors_give_the_same_sums_and_epilogues(
    tmp_path, triple, cpu, features, instructions, compiler, emulator, pixels, vectors
):
    if not shutil.which(compiler) or not shutil.which(emulator.split()[0]):
        pytest.skip(f"needs {compiler} and {emulator.split()[0]}")
    if compiler == "gcc" and os.uname().machine != "x86_64":
        pytest.skip("needs a compiler for x86-64")
    machine, module = assembled(triple, cpu, features, tile_of(pixels, vectors, instructions))
    (tmp_path / "tile.o").write_bytes(machine.emit_object(module))
    fields = ", ".join(f"{name} = {at}" for name, at in vars(dot_layout).items() if name.isupper())
    text = C_MAIN.replace("@FIELDS@", fields).replace("@ROWS@", str(pixels)).replace("@KNOWN@", str(16 * vectors))
    (tmp_path / "main.c").write_text(text)
    program = tmp_path / "program"
    words = [compiler, "-O1", "-static", "-o", program, tmp_path / "main.c", tmp_path / "tile.o"]
    subprocess.run(words, check=True, capture_output=True)
    done = subprocess.run([*emulator.split(), program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "equal\n", done


@pytest.mark.parametrize(
    "triple, cpu, features, instructions, mnemonic",
    [
        ("x86_64-linux-gnu", "alderlake", "", "avxvnni", "{vex}\tvpdpbusd"),
        ("x86_64-linux-gnu", "haswell", "", "avx2", "vpmaddwd"),
        ("x86_64-linux-gnu", "cascadelake", "", "avx512vnni", "vpdpbusd"),
        ("aarch64-linux-gnu", "cortex-a76", "+dotprod", "neon", "sdot"),
    ],
)
def test_the_tile_is_made_of_these_instructions(triple, cpu, features, instructions, mnemonic):
    machine, module = assembled(triple, cpu, features, tile_of(PIXELS, VECTORS, instructions))
    text = machine.emit_assembly(module)
    assert text.count(mnemonic) >= PIXELS * VECTORS
    assert "call" not in text


def test_products_of_matrices_are_made_of_amx_instructions():
    from nvdla.kernels.fast.dot_matrix_code import emit_matrix_tile

    machine, module = assembled("x86_64-linux-gnu", "sapphirerapids", "", emit_matrix_tile)
    text = machine.emit_assembly(module)
    assert text.count("tdpbusd") >= 2 * VECTORS  # whole blocks, and half a block
    assert "call" not in text


VNNI = {"avx512vnni": True, "avx512bw": True, "avx512vl": True, "avx2": True}


@pytest.mark.parametrize(
    "features, found",
    [
        (VNNI, ["avx512vnni", "avxvnni", "avx2"]),
        ({**VNNI, "amx-int8": True}, ["amx", "avx512vnni", "avxvnni", "avx2"]),
        ({"amx-int8": True, "avx2": True}, ["avx2"]),
        ({"avxvnni": True, "avx2": True, "avx512vl": False}, ["avxvnni", "avx2"]),
        ({"avx2": True}, ["avx2"]),
        ({"dotprod": True, "neon": True}, ["neon"]),
        ({"neon": True}, []),
        ({"sse2": True}, []),
    ],
)
def test_the_best_set_is_found_by_the_processors_features(features, found):
    assert processor.sets_of(features) == found


@pytest.mark.skipif(not processor.CPUINFO.exists(), reason="no /proc/cpuinfo")
def test_linux_and_llvm_agree_about_this_processor():
    present = processor.sets_of(processor._features())
    assert [name for name in present if name != "amx" or name in HERE] == HERE


def test_flags_are_those_of_the_first_processor(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx_vnni\n\nprocessor\t: 1\nflags\t\t: fpu avx512_vnni\n")
    assert processor.cpuinfo_flags(path) == {"fpu", "avx2", "avx_vnni"}
    path.write_text("Features\t: fp asimd asimddp\n")
    assert processor.cpuinfo_flags(path) == {"fp", "asimd", "asimddp"}
    path.write_text("vendor: unknown\n")
    assert processor.cpuinfo_flags(path) == processor.cpuinfo_flags(tmp_path / "none") == set()


@pytest.fixture
def asked(monkeypatch):
    def asked(name):
        monkeypatch.setenv(processor.VARIABLE, name)
        return processor.dot_instructions.__wrapped__()

    return asked


def test_an_environment_variable_selects_the_instruction_set(asked):
    assert asked("none") is None
    assert asked("") == next(iter(HERE), None)
    for name in HERE:
        assert asked(name) == name
    with pytest.raises(ConfigError, match=r"NVDLA_INT8: not supported by this processor: must be .*none, got 'mmx'"):
        asked("mmx")


def test_without_permission_for_amx_the_next_set_is_used(asked, monkeypatch):
    monkeypatch.setattr(processor, "_features", lambda: {**VNNI, "amx-int8": True})
    monkeypatch.setattr(processor, "_may_use_matrices", lambda: False)
    assert asked("") == "avx512vnni"
    with pytest.raises(ConfigError, match=r"not supported by this processor: must be avx512vnni.*got 'amx'"):
        asked("amx")


WHOLE = """
import hashlib, sys, numpy as np, nvdla
from nvdla.kernels.fast.dot_tile import instructions
from nvdla.kernels.jit.compilation import fallback_work
fallback_work.end()
runtime = nvdla.Runtime(sys.argv[1])
surface = np.random.default_rng(0).integers(0, 256, runtime.inputs[0].size, np.uint8).tobytes()
outputs = [runtime.run_raw([surface], on_operation=observer) for observer in (lambda event: None, None, None)]
assert outputs[0] == outputs[1] == outputs[2]
print(instructions(), hashlib.sha256(b"".join(outputs[0])).hexdigest())
"""


@pytest.mark.slow
def test_a_whole_network_gives_the_same_bytes_with_every_set(samples):
    answers = {}
    for name in (*HERE, "none"):
        words = [sys.executable, "-c", WHOLE, str(samples / "lenet.loadable")]
        done = subprocess.run(
            words, env={**os.environ, processor.VARIABLE: name}, capture_output=True, text=True, check=True
        )
        answers[name] = done.stdout.rsplit(None, 1)
    assert len({digest for _, digest in answers.values()}) == 1
    assert all(answers[name][0] == processor.SETS[name] for name in HERE)
