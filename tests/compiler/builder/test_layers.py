"""Every layer type, built for every configuration and precision: equal to plain numpy, close to float."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.build_checks import LEAST_SNR, TARGETS, build_and_run, engines, samples, signal_to_noise

import nvdla
from nvdla.compiler.builder import Network, NetworkTensor, build, calibrate
from nvdla.compiler.builder.ir import Convolve

Make = Callable[..., NetworkTensor]


def _w(*shape: int) -> np.ndarray:
    """Weights that depend on the shape alone."""
    return np.random.default_rng(sum(shape)).normal(size=shape)


def _conv(net: Network, x: NetworkTensor, kernels: int, size: int = 3, name: str = "conv", **settings) -> NetworkTensor:
    channels = x.shape[0] // settings.get("groups", 1)
    return net.convolution(name, x, _w(kernels, channels, size, size), _w(kernels), **settings)


def _residual(net: Network, x: NetworkTensor) -> NetworkTensor:
    first = net.relu("relu1", _conv(net, x, 16, name="conv1", padding=1))
    second = _conv(net, first, 16, name="conv2", padding=1)
    return net.relu("relu2", net.add("sum", second, x))


def _nested(net: Network, a: NetworkTensor, b: NetworkTensor, c: NetworkTensor) -> NetworkTensor:
    inner = net.concat("inner", net.relu("ra", a), net.relu("rb", b))
    return net.concat("outer", inner, net.relu("rc", c))


CUBE = (5, 7, 9)
LAYERS: dict[str, tuple[Make, tuple]] = {
    "convolution": (lambda n, x: _conv(n, x, 9, stride=(3, 2), padding=(2, 1, 0, 2)), ((12, 17, 20),)),
    "convolution without bias": (lambda n, x: n.convolution("c", x, _w(4, 5, 3, 3)), (CUBE,)),
    "dilated": (lambda n, x: _conv(n, x, 9, dilation=(2, 3), padding=(2, 3)), ((12, 17, 19),)),
    "grouped": (lambda n, x: _conv(n, x, 9, groups=3), ((12, 7, 9),)),
    "grouped in aligned parts": (lambda n, x: _conv(n, x, 128, groups=4), ((128, 5, 6),)),
    "depthwise": (lambda n, x: n.depthwise("d", x, _w(40, 1, 3, 3), _w(40), padding=1), ((40, 7, 9),)),
    "fully connected": (lambda n, x: n.fully_connected("f", x, _w(70, 240), _w(70)), ((12, 4, 5),)),
    "batch norm folded": (
        lambda n, x: n.batch_norm("b", _conv(n, x, 6), _w(6), _w(6) ** 2, _w(6), _w(6)),
        (CUBE,),
    ),
    "scale": (lambda n, x: n.scale("s", x, _w(5), _w(5)), (CUBE,)),
    "scale and relu": (lambda n, x: n.relu("r", n.scale("s", x, _w(5), _w(5))), (CUBE,)),
    "bias": (lambda n, x: n.bias("b", x, _w(5)), (CUBE,)),
    "relu": (lambda n, x: n.relu("r", x), (CUBE,)),
    "relu folded": (lambda n, x: n.relu("r", _conv(n, x, 6)), (CUBE,)),
    "prelu": (lambda n, x: n.prelu("p", x, _w(5)), (CUBE,)),
    "leaky relu": (lambda n, x: n.prelu("p", x, 0.1), (CUBE,)),
    "prelu folded": (lambda n, x: n.prelu("p", _conv(n, x, 6), np.abs(_w(6))), (CUBE,)),
    "clip": (lambda n, x: n.clip("c", x, -1, 1.5), (CUBE,)),
    "relu6 folded": (lambda n, x: n.clip("c", _conv(n, x, 6)), (CUBE,)),
    "sigmoid": (lambda n, x: n.sigmoid("s", x), (CUBE,)),
    "tanh": (lambda n, x: n.tanh("t", x), ((20, 7, 9),)),
    "any function": (lambda n, x: n.function("e", x, lambda v: np.exp(np.clip(v, -10, 3))), (CUBE,)),
    "add": (lambda n, a, b: n.add("a", a, n.scale("s", b, 10.0)), (CUBE, CUBE)),
    "add three": (lambda n, a, b, c: n.relu("r", n.add("a", a, b, c)), (CUBE,) * 3),
    "multiply": (lambda n, a, b: n.multiply("m", a, b), (CUBE, CUBE)),
    "maximum": (lambda n, a, b: n.maximum("m", a, n.scale("s", b, 3.3)), (CUBE, CUBE)),
    "minimum": (lambda n, a, b: n.minimum("m", a, b), (CUBE, CUBE)),
    "max pool": (lambda n, x: n.max_pool("p", x, 3, 2, 1), ((5, 17, 19),)),
    "min pool": (lambda n, x: n.min_pool("p", x, (2, 3), (2, 1)), ((5, 17, 19),)),
    "average pool": (lambda n, x: n.average_pool("p", x, 3, 2, 1), ((5, 17, 19),)),
    "global max pool": (lambda n, x: n.global_max_pool("p", x), ((5, 23, 29),)),
    "max pool above 8": (lambda n, x: n.max_pool("p", x, 11, 3, 2), ((5, 30, 31),)),
    "wide max pool": (lambda n, x: n.max_pool("p", x, (5, 3), 1, 1), ((5, 9, 300),)),
    "concat": (lambda n, a, b: n.concat("c", n.relu("ra", a), n.relu("rb", b)), ((32, 5, 6), (7, 5, 6))),
    "concat of odd sizes": (
        lambda n, a, b, c: n.concat("c", n.relu("ra", a), b, n.relu("rc", c)),
        ((5, 5, 6), (7, 5, 6), (11, 5, 6)),
    ),
    "nested concat": (_nested, ((32, 5, 6), (64, 5, 6), (11, 5, 6))),
    "lrn": (lambda n, x: n.lrn("l", x, 5, 1e-1), ((24, 7, 9),)),
    "lrn of nine": (lambda n, x: n.lrn("l", x, 9, 2, 0.5, 2.0), ((37, 7, 9),)),
    "deconvolution": (lambda n, x: n.deconvolution("d", x, _w(5, 6, 2, 2), _w(6), 2), (CUBE,)),
    "deconvolution with overlap": (
        lambda n, x: n.relu("r", n.deconvolution("d", x, _w(5, 6, 3, 3), _w(6), 2, 1)),
        (CUBE,),
    ),
    "deconvolution, uneven": (
        lambda n, x: n.deconvolution("d", x, _w(5, 6, 5, 2), _w(6), (1, 3), (2, 2, 0, 0)),
        (CUBE,),
    ),
    "deconvolution with gaps": (lambda n, x: n.deconvolution("d", x, _w(5, 6, 1, 1), _w(6), 2), (CUBE,)),
    "deconvolution to one element": (lambda n, x: n.deconvolution("d", x, _w(40, 50, 3, 3), padding=2), ((40, 3, 3),)),
    "upsample": (lambda n, x: n.upsample("u", x, 2), (CUBE,)),
    "upsample rows": (lambda n, x: n.upsample("u", x, (3, 1)), (CUBE,)),
    "upsample columns": (lambda n, x: n.upsample("u", x, (1, 3)), (CUBE,)),
    "residual block": (_residual, ((16, 12, 12),)),
}


def _network(name: str) -> Network:
    make, shapes = LAYERS[name]
    net = Network(name)
    net.output(make(net, *(net.input(f"in{index}", shape) for index, shape in enumerate(shapes))))
    return net


@pytest.mark.parametrize(("config", "precision", "per_channel"), TARGETS)
@pytest.mark.parametrize("name", LAYERS)
def test_layer_equals_plain_numpy_and_is_close_to_float(name, config, precision, per_channel):
    net = _network(name)
    data = samples(net, np.random.default_rng(len(name)))
    built = build_and_run(net, config, precision, per_channel, data)
    assert signal_to_noise(net, built, data) > LEAST_SNR[precision]


@pytest.mark.parametrize("config", ["nv_small", "nv_medium_512", "nv_large", "nv_full"])
@pytest.mark.parametrize("size", [(14, 12), (13, 11)])
def test_global_average_pool_of_any_size(config, size):
    """14x12 is a cascade, 13x11 a convolution; rounding leaves at most 1.5 steps of error."""
    net = Network()
    net.output(net.global_average_pool("average", net.input("in", (40, *size))))
    data = samples(net, np.random.default_rng(3))
    built = build_and_run(net, config, "int8", False, data)
    assert engines(built) == (["pdp", "pdp"] if size == (14, 12) else engines(built))
    assert ("conv" in engines(built)) == (size == (13, 11))
    elements = built.quantize_inputs({"in": data["in"][0]})
    mean = elements["in"].astype(np.float64).mean(axis=(2, 3))
    assert np.abs(built.expected(elements)["average"][:, :, 0, 0] - mean).max() <= 1.5


def test_only_atoms_that_parts_of_a_concat_share_are_put_together_by_a_sum():
    """On nv_large with atoms of 32: 64 channels and the last 96 go where they belong; 80 and 16 share an atom."""
    net = Network()
    parts = [net.relu(f"r{size}", net.input(f"in{size}", (size, 5, 6))) for size in (64, 80, 16, 96)]
    net.output(net.concat("k", *parts))
    data = samples(net, np.random.default_rng(6))
    built = build_and_run(net, "nv_large", "int8", False, data)
    assert engines(built) == ["sdp"] * 4 + ["conv", "sdp"] * 3  # 64 of 80 channels, the other 16, and 16
    sums = [operation.process.x2 for operation in built.program.operations if isinstance(operation, Convolve)]
    assert [stage is not None for stage in sums] == [False, False, True]
    assert signal_to_noise(net, built, data) > LEAST_SNR["int8"]


@pytest.mark.parametrize(("config", "operations"), [("nv_small", 5), ("nv_large", 2)])
def test_a_plain_global_average_takes_as_many_channels_at_once_as_the_convolution_buffer_holds(config, operations):
    """Kernels of 24 channels, 13 x 13, take 97,344 of nv_small's 131,072 bytes; nv_large takes a MAC cell's 64."""
    net = Network()
    net.output(net.global_average_pool("average", net.input("in", (104, 13, 13))))
    data = samples(net, np.random.default_rng(3))
    assert engines(build(net, config, "int8", calibrate(net, data), level=0)) == ["conv", "sdp"] * operations


def test_factors_after_factors_are_one_operation():
    net = Network()
    x = net.scale("one", net.input("in", (12, 5, 5)), _w(12), _w(12))
    net.output(net.scale("three", net.relu("r", net.scale("two", x, _w(12), _w(12))), _w(12)))
    data = samples(net, np.random.default_rng(3))
    for config, precision, per_channel in TARGETS:
        built = build_and_run(net, config, precision, per_channel, data)
        assert [operation.layer for operation in built.program.operations] == ["one+two+r", "three"]
        assert built.program.operations[1].x2 is None  # nothing to add
        assert signal_to_noise(net, built, data) > LEAST_SNR[precision]


@pytest.mark.parametrize(("config", "precision"), [("nv_small", "int8"), ("nv_large", "int8"), ("nv_full", "fp16")])
def test_softmax_runs_on_the_cpu_after_the_accelerator(config, precision):
    net = Network()
    x = net.input("in", (12, 4, 5))
    net.output(net.softmax("prob", net.fully_connected("f", x, _w(10, 240), _w(10))))
    data = samples(net, np.random.default_rng(4))
    built = build_and_run(net, config, precision, False, data)
    assert engines(built) == ["conv", "sdp", "cpu"]
    assert signal_to_noise(net, built, data) > 30


def test_layers_after_a_softmax_run_in_a_third_task():
    net = Network()
    x = net.softmax("prob", net.fully_connected("f", net.input("in", (12, 4, 5)), _w(10, 240)))
    net.output(net.scale("s", x, 2.0))
    built = build_and_run(net, "nv_small", "int8", False, samples(net, np.random.default_rng(4)))
    assert [task["kind"] for task in built.sidecar["tasks"]] == ["dla", "cpu", "dla"]


def test_functions_on_nv_small_use_the_cdp_because_its_sdp_has_no_table():
    net = Network()
    net.output(net.sigmoid("s", net.input("in", CUBE)))
    data = samples(net, np.random.default_rng(5))
    assert engines(build_and_run(net, "nv_small", "int8", False, data)) == ["cdp"]
    assert engines(build_and_run(net, "nv_large", "int8", False, data)) == ["sdp"]


def test_an_int8_function_is_the_rounded_function_for_every_element():
    net = Network()
    net.output(net.tanh("t", net.input("in", (1, 16, 16))))
    data = {"in": np.linspace(-4, 4, 256).reshape(1, 1, 16, 16)}
    built = build_and_run(net, "nv_small", "int8", False, data)
    elements = np.arange(-128, 128, dtype=np.int8).reshape(1, 1, 16, 16)
    exact = np.tanh(elements * built.input_scales["in"]) / built.output_scales["t"]
    np.testing.assert_array_equal(built.expected({"in": elements})["t"], np.floor(exact + 0.5))


def test_convolution_and_pool_are_one_chain_on_the_fly():
    net = Network()
    x = _conv(net, net.input("in", (8, 12, 12)), 16, padding=1)
    net.output(net.max_pool("pool", net.relu("relu", x), 2))
    built = build_and_run(net, "nv_small", "int8", False, samples(net, np.random.default_rng(6)))
    assert engines(built) == ["conv", "sdp", "pdp"]


def test_several_inputs_and_outputs_bind_in_the_order_of_the_network():
    net = Network()
    a, b = net.input("a", CUBE), net.input("b", CUBE)
    net.output(net.add("sum", a, b))
    net.output(net.relu("positive", b))
    built = build_and_run(net, "nv_small", "int8", False, samples(net, np.random.default_rng(7)))
    loadable = built.loadable
    names = [[loadable.tensor(each.tensor_desc_id).name for each in end] for end in (loadable.inputs, loadable.outputs)]
    assert names == [["a", "b"], ["sum", "positive"]]


@pytest.mark.parametrize(("config", "precision"), [("nv_small", "int8"), ("nv_full", "fp16")])
def test_one_pixel_of_a_larger_cube_is_copied_surface_by_surface(config, precision):
    """The C model refuses 1x1 cubes whose surfaces do not lie side by side."""
    net = Network()
    net.output(net.upsample("u", net.input("in", (40, 1, 1)), 3))
    data = samples(net, np.random.default_rng(3))
    runtime = nvdla.Runtime(build_and_run(net, config, precision, False, data).loadable, config=config)
    runtime.run_raw([bytes(tensor.size) for tensor in runtime.inputs])
    pixels = [job.destination.shape for _, job in runtime.operations() if job.destination.shape[1:3] == (1, 1)]
    assert len(pixels) > 1 and all(surfaces == 1 for surfaces, *_ in pixels)


@pytest.mark.parametrize("config", ["nv_small_256", "nv_small_256_full", "nv_medium_1024_full"])
def test_other_configurations_run_too(config):
    net = Network()
    x = _residual(net, net.input("in", (16, 12, 12)))
    x = net.concat("k", net.sigmoid("s", x), net.max_pool("p", x, 3, 1, 1))
    net.output(net.fully_connected("f", x, _w(10, 32 * 144), _w(10)))
    build_and_run(net, config, "int8", False, samples(net, np.random.default_rng(8)))


def test_relocations_name_the_strides_of_bound_tensors():
    """NVIDIA's runtime writes other strides there when the application binds other surfaces."""
    net = Network()
    a = net.input("a", (20, 5, 7))
    net.output(net.add("sum", _conv(net, a, 20, padding=1), a))
    built = build_and_run(net, "nv_small", "int8", False, samples(net, np.random.default_rng(9)))
    loadable = built.loadable
    found = set()
    for reloc in loadable.relocs:
        tensor = loadable.tensor(loadable.memory(loadable.address(reloc.address_id).mem_id).tensor_desc_id)
        blob = loadable.blob(loadable.memory(reloc.write_id).contents[0])
        word = int.from_bytes(blob.data[reloc.offset : reloc.offset + 4], "little")
        assert word == tensor.strides[reloc.reloc_type]
        found.add((tensor.name, int(reloc.reloc_type)))
    assert found == {("a", 1), ("a", 2), ("sum", 1), ("sum", 2)}


def test_a_pool_from_memory_may_come_before_one_on_the_fly():
    """The PDP's first group works from memory while the SDP already waits to feed its second."""
    net = Network()
    x = net.input("in", (4, 6, 6))
    net.output(net.max_pool("first", x, 2))
    net.output(net.max_pool("second", _conv(net, x, 4, padding=1), 3, 1))
    built = build_and_run(net, "nv_small", "int8", False, samples(net, np.random.default_rng(10)))
    assert engines(built) == ["pdp", "conv", "sdp", "pdp"]


def test_read_dmas_run_ahead_of_operations_on_the_fly():
    """PDP_RDMA and SDP_RDMA are enabled for the second group while the first still waits for the convolution."""
    net = Network()
    x = net.input("in", (4, 6, 6))
    conv = net.convolution("conv", x, _w(4, 4, 3, 3), padding=1)
    net.output(net.max_pool("on the fly", conv, 2))
    net.output(net.max_pool("from memory", x, 2))
    net.output(net.relu("relu", x))
    for config, precision in (("nv_small", "int8"), ("nv_full", "fp16")):
        built = build_and_run(net, config, precision, False, samples(net, np.random.default_rng(11)))
        assert engines(built) == ["conv", "sdp", "pdp", "pdp", "sdp"]
