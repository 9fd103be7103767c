"""SDP's lookup tables against single numbers in plain Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support import sdp_reference as reference

from nvdla.kernels import sdp_lut

int16 = st.integers(-32768, 32767)
int32 = st.one_of(st.integers(-1000, 1000), st.integers(-(1 << 31), (1 << 31) - 1))


@st.composite
def tables(draw) -> dict:
    def table(name: str, bias: int) -> dict:
        return {
            "start": draw(int32),
            "end": draw(int32),
            "select": draw(st.one_of(st.integers(-10, 26), st.integers(-128, 31))),
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
    plain = {name: {**setup[name], "entries": entries[name].tolist()} for name in entries}
    expected = [reference.lookup(x, plain, setup["choice"]) for x in data.tolist()]
    assert out.tolist() == [each[0] for each in expected]
    used = Counter(each[1] for each in expected)
    le_hits, lo_hits = (sum(each[at] == "hit" for each in expected) for at in (2, 3))
    assert counts.tolist() == [used["under"], used["over"], used["hit"], le_hits, lo_hits]


def test_a_value_at_the_start_of_the_tables_is_below_them():
    table = sdp_lut.SdpTable(100, 200, 0, 0, 0, 0, 0, 0)
    choice = sdp_lut.Choice(0, 0, 0, 0, 0)
    entries = np.arange(257, dtype=np.int16) + 7
    counts = np.zeros(sdp_lut.COUNTERS, np.int64)
    out = np.empty(2, np.int32)
    sdp_lut.lookup_integers(np.array([100, 101], np.int32), entries[:65], table, entries, table, choice, out, counts)
    assert out.tolist() == [7, 8]
    assert counts.tolist() == [1, 0, 1, 1, 1]
