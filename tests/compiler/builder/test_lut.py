"""Fitted lookup tables."""

from __future__ import annotations

import numpy as np
import pytest

from nvdla.compiler.builder import BuildError, Calibration, Network, build
from nvdla.compiler.builder.ir import exact_int8, fit_halves, fit_integers, fit_normalization_halves
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
