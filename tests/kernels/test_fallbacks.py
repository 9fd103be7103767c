"""Fallbacks give the same results as the compiled kernels, and end within their limit of work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.compiler.builder import Network, build, calibrate
from nvdla.kernels import conv, pdp, sdp
from nvdla.kernels.fast.conv_int8_dot import (
    MAX_TERMS,
    accumulate,
    available,
    pack_weights,
    padded_cube,
    tap_offsets,
)
from nvdla.kernels.jit import compilation

with_dots = pytest.mark.skipif(not available(), reason="this processor has no instructions for it")
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def integers(random, dtype, shape, extreme):
    """Random elements, or only the least and the greatest."""
    limits = np.iinfo(dtype)
    if extreme:
        return random.choice(np.array([limits.min, limits.max], dtype), shape)
    return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def both(kernel, args, place):
    """Return (result, ``args[place]`` afterwards) of the fallback and of the compiled kernel."""
    results = []
    for variant in (kernel.fallback, kernel.call_compiled):
        given_args = list(args)
        given_args[place] = args[place].copy()
        returned = variant(*given_args)
        results.append((None if isinstance(returned, np.ndarray) else returned, given_args[place]))
    return results


def assert_equal(results):
    (fallback_value, fallback), (compiled_value, compiled) = results
    assert fallback_value == compiled_value
    assert np.array_equal(fallback, compiled)


@st.composite
def pooling(draw):
    """Source, result, and (kernel, stride, pad), each (vertical, horizontal)."""
    surfaces, atom, dtype = draw(st.integers(1, 3)), draw(st.sampled_from([8, 32])), draw(st.sampled_from(["i1", "i2"]))
    axes = []
    for _ in range(2):
        kernel, stride, size = draw(st.integers(1, 8)), draw(st.integers(1, 9)), draw(st.integers(1, 9))
        pad = draw(st.integers(0, kernel - 1))
        outputs = draw(st.integers(1, (size - 1 + pad) // stride + 1))  # each window begins inside the cube
        axes.append((kernel, stride, pad, size, outputs))
    kernel, stride, pad, size, outputs = zip(*axes, strict=True)
    source = integers(draw(seeds), dtype, (surfaces, *size, atom), draw(st.booleans()))
    return source, np.zeros((surfaces, *outputs, atom), dtype), kernel, stride, pad


def by_images(source, out, *geometry):
    """The same layer as arguments of the kernels: every surface is a separate cube."""
    cubes = pdp.Cubes(len(source), 1, *source.shape[1:3], *out.shape[1:], source[0].size, out[0].size)
    return source.reshape(-1), out.reshape(-1), cubes, *geometry


@settings(max_examples=60)
@given(pooling(), st.integers(0, 1))
def test_greatest_and_least(layer, least):
    assert_equal(both(pdp.pool_extreme, (*by_images(*layer), least), 1))


@settings(max_examples=60)
@given(pooling(), seeds, st.booleans())
def test_average(layer, random, extreme):
    pad_values = random.integers(-(1 << 18), 1 << 18, 9) * extreme
    reciprocal = tuple(int(each) for each in random.integers(1, 1 << 17, 2))
    sum_bits = 16 if layer[0].dtype == np.int8 else 32
    assert_equal(both(pdp.pool_average, (*by_images(*layer), pad_values, reciprocal, sum_bits), 1))


@settings(max_examples=60)
@given(st.data(), seeds)
def test_bias_and_converter(data, random):
    draw = data.draw
    surfaces, batches = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    rows, pixels, atom = surfaces * batches, draw(st.integers(1, 70)), draw(st.sampled_from([8, 32]))
    extreme, dtype = draw(st.booleans()), draw(st.sampled_from(["i1", "i2", "i4"]))
    source = integers(random, np.int32, (rows, pixels, atom), extreme) >> draw(st.integers(0, 24))
    bias = integers(random, np.int16, (surfaces, 1, atom), extreme)
    limits = np.iinfo(dtype)
    scale = draw(st.integers(-(1 << 15), (1 << 15) - 1)) * 2.0 ** -draw(st.integers(0, 63))
    offset = float(draw(st.integers(-(1 << 31), (1 << 31) - 1)))
    converter = sdp.Converter(offset, scale, float(limits.min), float(limits.max))
    floor = draw(st.sampled_from([0.0, sdp.INT32_LOW]))
    out = np.zeros(source.shape, dtype)
    assert_equal(both(sdp._bias_lines, (source, bias, floor, converter, out, 0, rows), 4))


stages = st.builds(
    sdp.StageValues,
    st.integers(0, 1),
    st.sampled_from([sdp.MAX, sdp.MIN, sdp.SUM, sdp.NO_ALU]),
    st.integers(0, 20).map(lambda shift: 2.0**shift),
    st.sampled_from([sdp.NO_MUL, sdp.MUL, sdp.PRELU]),
    st.integers(0, 40).map(lambda shift: 2.0**-shift),
    st.integers(0, 1),
)


@settings(max_examples=100)
@given(st.data(), seeds, stages, stages, st.booleans())
def test_both_x_stages(data, random, stage1, stage2, extreme):
    """Operands are of one register, of a kernel each, or of an element each."""
    draw = data.draw
    rows, pixels, atom = draw(st.integers(1, 4)), draw(st.integers(1, 300)), draw(st.sampled_from([8, 16, 32]))
    source = integers(random, np.int32, (rows, pixels, atom), extreme) >> draw(st.integers(0, 24))
    shape = st.sampled_from([(1, 1, atom), (rows, 1, atom), (rows, pixels, atom)])
    operands = [integers(random, np.int16, draw(shape), extreme) for _ in range(4)]
    dtype = draw(st.sampled_from(["i1", "i2", "i4"]))
    scale = draw(st.integers(-(1 << 15), (1 << 15) - 1)) * 2.0 ** -draw(st.integers(0, 63))
    limits = np.iinfo(dtype)
    offset = float(draw(st.integers(-(1 << 31), (1 << 31) - 1)))
    converter = sdp.Converter(offset, scale, float(limits.min), float(limits.max))
    lines = rows * -(-pixels // (sdp.LINE // atom))
    blocks = (*operands[:2], stage1, *operands[2:], stage2)
    assert_equal(both(sdp._lines, (source, *blocks, converter, np.zeros(source.shape, dtype), 0, lines), 8))


@settings(max_examples=60)
@given(st.data(), seeds, st.integers(0, 31))
def test_delivery(data, random, truncate):
    kernels, atom = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([8, 32]))
    shape = (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)))
    sums = integers(random, np.int64, (*shape, kernels), False) >> random.integers(16, 63, (*shape, kernels))
    out = np.ones((shape[0], -(-kernels // atom), *shape[1:], atom), np.int32)
    assert_equal(both(conv.deliver, (sums, truncate, out), 2))
    accumulators = integers(random, np.int32, 64, data.draw(st.booleans()))
    assert_equal(both(conv.shift, (accumulators, truncate), 0))


@with_dots
@settings(max_examples=60)
@given(st.data(), seeds, st.booleans())
def test_convolution(data, random, extreme):
    """The cube with its padding, then all sums: with the bytes that no weight multiplies left out."""
    draw = data.draw
    atom, channels, kernels = draw(st.sampled_from([8, 32])), draw(st.integers(1, 40)), draw(st.integers(1, 140))
    rows, columns, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    top, left, stored = draw(st.integers(0, 2)), draw(st.integers(0, 2)), -(-channels // 4) * 4
    height, width = draw(st.integers(5, 9)), draw(st.integers(5, 9))
    cube = integers(random, np.int8, (-(-channels // atom), draw(st.integers(1, 9)), draw(st.integers(1, 9)), atom), 0)
    flat = np.full(height * width * stored + 4, 7, np.uint8)
    cubes = [flat[:-4].reshape(height, width, stored), np.zeros((height, width, stored), np.uint8)]
    padding = (cube, top, left, draw(st.integers(-128, 127)))
    for variant, filled in zip((padded_cube.fallback, padded_cube.call_compiled), cubes, strict=True):
        variant(*padding, filled)
    assert np.array_equal(cubes[0][..., :channels], cubes[1][..., :channels])
    weights = integers(random, np.int8, (kernels, channels, rows, columns), extreme)
    packed, correction = pack_weights(weights, dilation > 1)
    taps = tap_offsets(1, (rows, columns), (dilation, dilation), (height, width), stored)
    places = np.arange(height - (rows - 1) * dilation)[:, None] * width + np.arange(width - (columns - 1) * dilation)
    pixels = places.reshape(-1) * stored
    out = np.zeros((-(-kernels // atom), pixels.size, atom), np.int32)
    assert_equal(both(accumulate, (flat, pixels, taps, packed.shape[2], packed, correction, out), 6))


@with_dots
@pytest.mark.parametrize(
    ("channels", "kernels", "window", "size"),
    [(64, 64, 3, 34), (1100, 40, 1, 40), (2600, 16, 3, 9), (16, 2100, 1, 33), (3, 64, 7, 70)],
)
@pytest.mark.parametrize("extreme", [False, True])
def test_convolutions_that_blas_computes(channels, kernels, window, size, extreme):
    """Sums of more terms than float32 has exact, more kernels and more pixels than go at a time."""
    random, atom, stored = np.random.default_rng(channels), 8, -(-channels // 4) * 4
    flat = random.integers(0, 256, size * size * stored + 4, np.uint8)
    weights = integers(random, np.int8, (kernels, channels, window, window), extreme)
    if extreme:
        flat[:], weights[0] = 0, -128
    packed, correction = pack_weights(weights, False)
    taps = tap_offsets(1, (window, window), (1, 1), (size, size), stored)
    outputs = size - window + 1
    pixels = (np.arange(outputs)[:, None] * size + np.arange(outputs)).reshape(-1) * stored
    out = np.ones((-(-kernels // atom), pixels.size, atom), np.int32)
    with compilation.fallback_work.run():
        assert_equal(both(accumulate, (flat, pixels, taps, packed.shape[2], packed, correction, out), 6))


@given(seeds, st.integers(0, 9), st.integers(0, 9), st.integers(1, 8), st.integers(1, 8))
def test_padded_cubes_that_show_little_or_nothing_of_the_cube(random, top, left, height, width):
    """Outputs can be entirely in the padding, and can end before the cube."""
    atom, surfaces = int(random.choice([8, 32])), int(random.integers(1, 4))
    cube = random.integers(-128, 128, (surfaces, *random.integers(1, 7, 2), atom), np.int8)
    stored = int(random.integers(1, surfaces * atom // 4 + 1)) * 4
    empty = np.zeros((height, width, stored), np.uint8)
    assert_equal(both(padded_cube, (cube, top, left, int(random.integers(-128, 128)), empty), 4))


def test_the_longest_sums():
    """As many of the greatest products as are allowed."""
    terms = MAX_TERMS // 4 * 4
    packed, correction = pack_weights(np.full((1, terms, 1, 1), -128, np.int8), False)
    data, zero = np.zeros(terms + 4, np.uint8), np.zeros(1, np.int64)
    out = np.zeros((1, 1, 8), np.int32)
    accumulate.fallback(data, zero, zero, terms // 4, packed, correction, out)
    assert out[0, 0, 0] == 128 * 128 * terms


def test_fallbacks_end_with_their_work():
    kernel = compilation.njit()(lambda values: values * 2)
    sizes = []

    @kernel.with_fallback(lambda values: values.size)
    def doubled(values):
        sizes.append(values.size)
        return values * 2

    left, compilation.fallback_work.left = compilation.fallback_work.left, 10
    try:
        for size in (4, 7, 6, 1):  # 7 are more than are left; once compiled, always compiled
            assert kernel(np.ones(size))[-1] == 2.0
    finally:
        compilation.fallback_work.left = left
    assert sizes == [4]


LENET = """
import sys
import nvdla
from nvdla.kernels.jit import compilation
from nvdla.kernels.fast import dot_tile
compilation.fallback_work.left = int(sys.argv[3])
if sys.argv[4] == "without":
    dot_tile.available = lambda: False
runtime = nvdla.Runtime(nvdla.load(sys.argv[1]))
print(runtime.run_raw(runtime.surfaces(sys.argv[2]))[0].hex(), "numba" in sys.modules)
"""


@pytest.mark.parametrize("dots", [pytest.param("with", marks=with_dots), "without"])
def test_lenet_is_through_before_numba_is_there(samples, dots):
    """With the processor's dot products and without."""
    outputs = []
    for work, compiled in ((compilation.FALLBACK_WORK, "False"), (0, "True")):
        words = [sys.executable, "-c", LENET, samples / "lenet.loadable", samples / "digit3.pgm", str(work), dots]
        output, with_numba = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
        assert with_numba == compiled
        outputs.append(output)
    assert outputs[0] == outputs[1]


LARGE = """
import sys
import numpy as np
import nvdla
from nvdla.kernels.jit.compilation import fallback_work
runs, compiled = int(sys.argv[2]), sys.argv[3] == "compiled"
if compiled:
    fallback_work.end()
runtime = nvdla.Runtime(sys.argv[1], threads=int(sys.argv[4]) or None)
surface = np.random.default_rng(1).integers(0, 256, runtime.inputs[0].size, np.uint8).tobytes()
for _ in range(runs):
    output = runtime.run_raw([surface])[0]
    print(output.hex()[:2000], "numba" in sys.modules)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The file of an int8 network of 80 million multiplications."""
    random = np.random.default_rng(5)
    net = Network("large")
    x = net.input("data", (32, 40, 40))
    weights = random.standard_normal((2, 64, 64, 3, 3))
    y = net.relu("first", net.convolution("c1", x, weights[0, :, :32], padding=1))
    z = net.relu("second", net.add("sum", net.convolution("c2", y, weights[1], padding=1), y))
    z = net.average_pool("mean", net.max_pool("most", z, 3, 2), 2)
    net.output(net.softmax("end", net.fully_connected("full", z, random.standard_normal((10, 64 * 9 * 9)))))
    scales = calibrate(net, random.standard_normal((2, 32, 40, 40)))
    path = tmp_path_factory.mktemp("large") / "large.loadable"
    build(net, "nv_large", "int8", scales).save(path)
    return path


def run(path, count, *words, **environment):
    """Outputs of runs of LARGE, each with whether numba is imported."""
    command = [sys.executable, "-c", LARGE, str(path), str(count), *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})
    return [line.split() for line in done.stdout.splitlines()]


@with_dots
def test_the_runs_of_a_large_network_do_not_wait_for_kernels(large, tmp_path):
    """They are compiled by another process."""
    cold = run(large, 2, "fallbacks", "0", NVDLA_CACHE_DIR=str(tmp_path))
    kernels = run(large, 1, "compiled", "0")
    assert [numba for _, numba in cold] == ["False", "False"]
    assert {output for output, _ in cold} == {output for output, _ in kernels}
    assert run(large, 2, "fallbacks", "0") == [[cold[0][0], "False"]] * 2, "numba is not needed to load kernels"
    assert run(large, 1, "fallbacks", "1") == [[cold[0][0], "False"]]


@pytest.mark.parametrize("name", ["lenet", "color_digits"])
def test_the_runs_of_fp16_do_not_wait_for_kernels(samples, tmp_path, name):
    """Neither numpy nor cached kernels need numba."""
    path = samples / f"{name}_nv_full_fp16.loadable"
    cold = run(path, 2, "fallbacks", "0", NVDLA_CACHE_DIR=str(tmp_path))
    run(path, 1, "compiled", "0")
    assert run(path, 2, "compiled", "0") == cold == [[cold[0][0], "False"]] * 2


@pytest.mark.parametrize(("name", "taken"), [("of the user", False), ("nvdla-working", True)])
def test_no_run_uses_fallbacks_if_python_has_threads_that_can_fork(name, taken, monkeypatch):
    """BLAS does not support a fork during a product."""
    done = threading.Event()
    other = threading.Thread(target=done.wait, name=name)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread(), other][: 1 + other.is_alive()])
    assert compilation.FallbackWork(0).take_run(1)
    other.start()
    try:
        assert compilation.FallbackWork(0).take_run(1) == taken
    finally:
        done.set()
        other.join()


def test_reading_and_running_import_numba_for_kernels_only():
    kernels = Path(compilation.__file__).parents[1]
    paths = [
        path
        for path in kernels.rglob("*.py")
        if path.stem not in ("__init__", "kernel_cache") and not path.stem.endswith("_code")
    ]
    names = [".".join(("nvdla.kernels", *path.relative_to(kernels).with_suffix("").parts)) for path in paths]
    words = [sys.executable, "-c", f"import sys, nvdla.cli.run, {', '.join(names)}; print('numba' in sys.modules)"]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == "False\n"
