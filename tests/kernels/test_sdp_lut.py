"""SDP's lookup tables against the specification, integers and fp16."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nvdla.kernels import sdp_lut
from nvdla.kernels.reference import sdp_lut as reference

int16 = st.integers(-32768, 32767)
int32 = st.one_of(st.integers(-1000, 1000), st.integers(-(1 << 31), (1 << 31) - 1))


@st.composite
def tables(draw) -> dict:
    def table(name: str, bias: int) -> dict:
        return {
            "start": draw(int32),
            "end": draw(int32),
            "select": draw(st.one_of(st.integers(-10, 26), st.integers(-128, 127))),
            "underflow_scale": draw(int16),
            "underflow_shift": draw(st.integers(-16, 15)),
            "overflow_scale": draw(int16),
            "overflow_shift": draw(st.integers(-16, 15)),
            "bias": bias,
        }

    choice = {
        "exponential": draw(st.integers(0, 1)),
        "index_offset": draw(st.integers(-64, 31)),
        "underflow": draw(st.integers(0, 1)),
        "overflow": draw(st.integers(0, 1)),
        "hybrid": draw(st.integers(0, 1)),
    }
    bias = 1 << choice["index_offset"] if choice["exponential"] and choice["index_offset"] > 0 else 0
    return {"le": table("le", bias), "lo": table("lo", 0), "choice": choice}


def whole(entries, le, lo):
    """Both tables with their entries, as the specification takes them."""
    return [
        reference.LookupTable(words.tolist(), *table) for words, table in zip(entries.values(), (le, lo), strict=True)
    ]


def counted(expected):
    """The statistics of results of the specification."""
    used = Counter(each[1] for each in expected)
    hits = [sum(each[at] == reference.HIT for each in expected) for at in (2, 3)]
    return [used[reference.UNDERFLOW], used[reference.OVERFLOW], used[reference.HIT], *hits]


FLAT = dict.fromkeys(sdp_lut.SdpTable._fields, 0)
FIRST_TABLE = dict.fromkeys(sdp_lut.Choice._fields, 0)


@example({"le": FLAT | {"start": -163, "select": 36}, "lo": FLAT | {"end": 1_633_949_586}, "choice": FIRST_TABLE}, 0)
@settings(max_examples=200)
@given(tables(), st.integers(0, 1 << 32))
def test_integer_lookup_equals_single_numbers(setup, seed):
    rng = np.random.default_rng(seed)
    entries = {name: rng.integers(-32768, 32768, size).astype(np.int16) for name, size in (("le", 65), ("lo", 257))}
    near = rng.choice([setup["le"]["start"], setup["lo"]["start"], setup["lo"]["end"]], 48)
    near = np.clip(near + (rng.integers(-(1 << 31), 1 << 31, 48) >> rng.integers(0, 31, 48)), -(1 << 31), (1 << 31) - 1)
    data = near.astype(np.int32)
    out, counts = np.empty_like(data), np.zeros(sdp_lut.COUNTERS, np.int64)
    le, lo = sdp_lut.SdpTable(**setup["le"]), sdp_lut.SdpTable(**setup["lo"])
    choice = sdp_lut.Choice(**setup["choice"])
    sdp_lut.lookup_integers(data, entries["le"], le, entries["lo"], lo, choice, out, counts)
    expected = [reference.lookup(x, *whole(entries, le, lo), choice) for x in data.tolist()]
    assert out.tolist() == [each[0] for each in expected]
    assert counts.tolist() == counted(expected)


def test_a_value_at_the_start_of_the_tables_is_below_them():
    table = sdp_lut.SdpTable(100, 200, 0, 0, 0, 0, 0, 0)
    choice = sdp_lut.Choice(0, 0, 0, 0, 0)
    entries = np.arange(257, dtype=np.int16) + 7
    counts = np.zeros(sdp_lut.COUNTERS, np.int64)
    out = np.empty(2, np.int32)
    sdp_lut.lookup_integers(np.array([100, 101], np.int32), entries[:65], table, entries, table, choice, out, counts)
    assert out.tolist() == [7, 8]
    assert counts.tolist() == [1, 0, 1, 1, 1]


@settings(max_examples=150)
@given(
    st.tuples(st.integers(0, 1), st.integers(-64, 31), *[st.integers(0, 1)] * 3),
    st.tuples(st.integers(-20, 12), st.integers(-20, 12)),
    st.integers(0, 1 << 32),
)
def test_fp16_lookup_equals_single_numbers(chosen, selects, seed):
    """Positions in and around the tables, NaN and the corners of fp32."""
    rng = np.random.default_rng(seed)
    words = {
        name: rng.standard_normal(size).astype(np.float16).view(np.int16) for name, size in (("le", 65), ("lo", 257))
    }
    choice = sdp_lut.Choice(*chosen)

    def table(select, bias):
        start, end = (rng.standard_normal(2) * 2.0 ** rng.integers(-8, 8)).astype(np.float32).view(np.uint32).tolist()
        slopes = rng.standard_normal(2).astype(np.float16).view(np.uint16).tolist()
        return sdp_lut.SdpTable(start, end, select, slopes[0], 0, slopes[1], 0, bias)

    bias = int(np.array(2.0**choice.index_offset, np.float32).view(np.uint32)) if choice.exponential else 0
    le, lo = table(selects[0], bias), table(selects[1], 0)
    near = rng.choice(np.array([le.start, lo.start, lo.end], np.uint32).view(np.float32), 40)
    data = (near + rng.standard_normal(40) * 2.0 ** rng.integers(-24, 12, 40)).astype(np.float32).view(np.uint32)
    data[:6] = [0, 1 << 31, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800123, le.start]
    out, counts = np.empty_like(data), np.zeros(sdp_lut.COUNTERS, np.int64)
    sdp_lut.lookup_floats(data, words["le"], le, words["lo"], lo, choice, out, counts)
    unsigned = {name: each.view(np.uint16) for name, each in words.items()}
    expected = [reference.lookup_fp16(x, *whole(unsigned, le, lo), choice) for x in data.tolist()]
    assert out.tolist() == [each[0] for each in expected]
    assert counts.tolist() == counted(expected)
