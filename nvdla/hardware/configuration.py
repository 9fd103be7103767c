"""The hardware configurations (configurations.yaml): what each NVDLA build has and how large it is.

Read from configurations.json, which tools/tables.py makes of it.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from nvdla.checked import word
from nvdla.errors import ConfigError


@dataclass(frozen=True)
class Configuration:
    """One build of the hardware. Sizes are in bytes, throughputs in elements a cycle; None = not built.

    Source: spec/defs/<name>.spec of the hardware repository.
    """

    name: str
    precisions: tuple[str, ...]
    memory_atom: int
    mac_atomic_c: int
    mac_atomic_k: int
    cbuf_banks: int
    cbuf_bank_width: int
    cbuf_bank_depth_entries: int
    sdp_bs_throughput: int | None
    sdp_bn_throughput: int | None
    sdp_ew_throughput: int | None
    sdp_lut: bool
    pdp_throughput: int | None
    cdp_throughput: int | None
    bdma: bool
    rubik: bool
    winograd: bool
    weight_compression: bool
    batch: bool
    max_batch: int | None
    cvsram: bool
    dram_width_bits: int
    cvsram_width_bits: int | None
    dram_latency_cycles: int
    address_bits: int
    register_map: str

    @property
    def cbuf_bank_bytes(self) -> int:
        return self.cbuf_bank_width * self.cbuf_bank_depth_entries


@cache
def configurations() -> dict[str, Configuration]:
    """All configurations by name."""
    text = resources.files("nvdla.hardware").joinpath("configurations.json").read_text(encoding="utf-8")
    table = json.loads(text)
    return {
        name: Configuration(name=name, **{**values, "precisions": tuple(values["precisions"])})
        for name, values in table.items()
    }


def configuration(name: str) -> Configuration:
    """The configuration called ``name``. Raises ConfigError that lists the names and suggests the nearest."""
    known = configurations()
    if word(name, "config") in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"unknown hardware configuration {name!r}: {hint}known are {', '.join(known)}")


def configurations_with(**features: Any) -> list[str]:
    """Names of the configurations whose attributes equal ``features`` (for messages: 'which have it')."""
    return [
        name
        for name, each in configurations().items()
        if all(getattr(each, feature) == value for feature, value in features.items())
    ]
