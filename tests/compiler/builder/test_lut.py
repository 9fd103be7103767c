"""Fitted lookup tables."""

from __future__ import annotations

import numpy as np
import pytest

import nvdla
from nvdla.analysis.study import Study
from nvdla.compiler.builder import BuildError, Calibration, Network, build, calibrate
from nvdla.compiler.builder.ir import exact_int8, fit_halves, fit_integers, fit_normalization_halves, fit_octaves
from nvdla.compiler.builder.reference import look_up


def test_int8_tables_hold_every_value():
    lut = exact_int8(np.tanh, 0.03, 1 / 127)
    x = np.arange(-128, 128)
    np.testing.assert_array_equal(look_up(lut, x), np.floor(np.tanh(x * 0.03) * 127 + 0.5))
    np.testing.assert_array_equal(look_up(lut, x, 16), look_up(lut, x))


@pytest.mark.parametrize("function", [np.tanh, lambda x: 1 / (1 + np.exp(-x)), np.sin])
def test_int16_tables_are_within_their_stated_error(function):
    def wanted(x: np.ndarray) -> np.ndarray:
        return function(x / 4096) * 32767

    lut = fit_integers(wanted, -32768, 32767)
    x = np.arange(-32768, 32768)
    error = np.abs(look_up(lut, x) - wanted(x.astype(np.float64))).max()
    assert error <= lut.error + 1
    assert lut.error < 20


def test_the_second_table_refines_where_the_function_bends_most():
    def wanted(x: np.ndarray) -> np.ndarray:
        return 30000 / (1 + x / 50)

    lut = fit_integers(wanted, 0, 1 << 17)
    assert not lut.prefer_lo
    x = np.arange(0, 4096)
    coarse = np.abs(np.interp(x, lut.lo.start + np.arange(257) * 2.0**lut.lo.select, lut.lo.values) - wanted(x)).max()
    assert np.abs(look_up(lut, x) - wanted(x)).max() < coarse / 4


def test_fp16_tables_continue_beyond_their_range():
    lut = fit_halves(lambda x: 1 / (1 + np.exp(-x)), -8, 8)
    x = np.linspace(-60, 60, 4001)
    assert np.abs(look_up(lut, x) - 1 / (1 + np.exp(-x))).max() < 0.02
    assert lut.error < 1e-3


def test_fp16_normalization_is_fine_near_zero_and_reaches_far():
    lut = fit_normalization_halves(5, 1e-4, 0.75, 1.0)
    for x, limit in ((np.linspace(0.1, 5e4, 999), 2e-3), (np.geomspace(1e5, 1e9, 99), 0.1)):
        exact = (1 + 1e-4 / 5 * x) ** -0.75
        assert np.abs(look_up(lut, x) / exact - 1).max() < limit


def test_fp16_octaves_reach_from_the_smallest_half_to_the_largest():
    """Within 2.3 % by interpolation between powers of two, and within 0.6 % where the finer table is."""
    lut = fit_octaves(lambda x: x**-0.5, 10.0)
    for x, limit in ((np.geomspace(2.0**-24, 65504, 9999), 0.023), (np.geomspace(0.26, 16, 999), 0.006)):
        error = look_up(lut, x) * np.sqrt(x) - 1
        assert max(error.max(), -error.min()) < limit
    assert look_up(lut, np.zeros(1)) == lut.le.values[0]


def test_the_hardware_looks_up_octaves():
    net = Network("net")
    net.output(net.function("f", net.input("in", (1, 40, 50)), lambda x: np.maximum(x, 1e-7) ** -0.5, octaves=True))
    with pytest.raises(BuildError, match="layer f: range of its input: must be known"):
        build(net, "nv_full", "fp16")
    built = build(net, "nv_full", "fp16", Calibration({"in": 10.0, "f": 4096.0}))
    elements = built.quantize_inputs(np.geomspace(2.0**-24, 65504, 2000).reshape(1, 1, 40, 50))
    found = nvdla.Runtime(built.loadable, "nv_full").run(elements)["f"]
    np.testing.assert_allclose(found, built.expected(elements)["f"], rtol=2.0**-10)


def test_a_function_without_finite_values_is_refused():
    with pytest.raises(BuildError, match="function of a lookup table: must be finite"):
        exact_int8(np.log, 0.1, 0.1)


@pytest.mark.parametrize("name", ["square", "cube", "arctangent", "knee"])
def test_a_function_of_unknown_range_is_refused_where_its_table_ends_in_another_line(name):
    """LE reaches four times as far as LO; beyond it the table goes on straight."""
    function = {
        "square": np.square,
        "cube": lambda x: x**3,
        "arctangent": np.arctan,
        "knee": lambda x: np.minimum(x, 50),
    }
    net = Network("net")
    net.output(net.function("f", net.input("in", (1, 1, 4)), function[name]))
    with pytest.raises(BuildError, match="layer f: range of its input: must be known"):
        build(net, "nv_full", "fp16")
    assert build(net, "nv_full", "fp16", Calibration({"in": 8.0, "f": 512.0})).loadable


def test_functions_that_end_in_straight_lines_need_no_range():
    net = Network("net")
    net.output(net.function("f", net.input("in", (1, 1, 4)), lambda x: x / (1 + np.exp(-np.clip(x, -700, 700)))))
    built = build(net, "nv_full", "fp16")
    x = np.array([-500, -60, 60, 500.0]).reshape(1, 1, 1, 4)
    np.testing.assert_allclose(built.expected(built.quantize_inputs(x))["f"].ravel(), [0, 0, 60, 500], atol=0.05)


def _swish(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _network(channels: int, size: int, groups: int = 1, consumers: int = 1) -> Network:
    """A convolution, and a function of its result."""
    rng = np.random.default_rng(0)
    net = Network("lut")
    x = net.input("in", (channels, size, size))
    weights = rng.normal(size=(channels, channels // groups, 3, 3))
    y = net.convolution("conv", x, weights, rng.normal(size=channels), padding=1, groups=groups)
    for number in range(consumers):
        net.output(net.function(f"f{number}", y, _swish))
    return net


def _built(net: Network, config: str = "nv_large", scales: float = 1.0, level: int = 1):
    """The network, elements beyond its range among the inputs, and the engines of each chain."""
    data = np.random.default_rng(1).normal(size=(4, *net.inputs[0].shape))
    built = build(net, config, "int8", calibrate(net, data), level=level)
    elements = built.quantize_inputs({"in": data[:1] * scales})
    return (
        built,
        elements,
        ["+".join(node.engine for node in chain) for chain in Study.of(built.loadable, config).chains],
    )


@pytest.mark.parametrize("config", ["nv_large", "nv_full"])
@pytest.mark.parametrize(("channels", "size", "groups"), [(16, 9, 1), (40, 5, 1), (64, 14, 64), (24, 32, 1)])
@pytest.mark.parametrize("beyond", [1.0, 5.0])
def test_a_convolution_looks_up_the_function_after_it_with_the_same_results(config, channels, size, groups, beyond):
    net = _network(channels, size, groups)
    built, elements, engines = _built(net, config, beyond)
    assert set(engines) == {"conv+sdp"}
    result = nvdla.Runtime(built.loadable, config).run(elements)["f0"]
    np.testing.assert_array_equal(result, built.expected(elements)["f0"])
    apart, same, separate = _built(net, config, beyond, level=0)
    assert "sdp" in separate
    other = nvdla.Runtime(apart.loadable, config).run(same)["f0"]
    # Zero points differ between the levels; one unit of the function's input is up to two of its result.
    assert np.abs(result.astype(int) - other.astype(int)).max() <= 4
    assert (result != other).mean() < 0.01
    fast, slow = (Study.of(each.loadable, config).schedule.cycles for each in (built, apart))
    assert fast < 0.9 * slow


def test_a_result_that_others_take_is_written_before_it_is_looked_up():
    assert _built(_network(16, 9, consumers=2))[2] == ["conv+sdp", "sdp", "sdp"]


def test_a_table_is_not_programmed_again_for_many_small_convolutions():
    """Convolutions on 2x2 take less time than 334 register writes for each of them, those on 7x7 do not."""
    engines = _built(_network(256, 2, groups=256))[2]
    assert engines[-1] == "sdp"
    assert engines.count("conv+sdp") == len(engines) - 1 >= 4
    assert set(_built(_network(576, 7, groups=576))[2]) == {"conv+sdp"}


def test_without_tables_in_the_sdp_the_cdp_looks_up():
    assert _built(_network(16, 9), "nv_small")[2] == ["conv+sdp", "cdp"]
