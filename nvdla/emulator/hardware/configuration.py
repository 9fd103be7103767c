"""The hardware configurations (configurations.yaml): what each NVDLA build has and how large it is.

NVIDIA's are read from configurations.json, which tools/tables.py makes of the YAML; a custom one from a YAML
file of the same fields (CONTRIBUTING.md).
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path

from nvdla.errors import ConfigError, FormatError
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document, Json
from nvdla.util.precision import Precision

#: attribute of a configuration that may be missing -> what messages call it
FEATURES = {
    "bdma": "BDMA",
    "rubik": "Rubik",
    "winograd": "Winograd mode",
    "weight_compression": "weight decompression",
    "batch": "hardware batches",
    "cvsram": "CVSRAM",
    "sdp_lut": "lookup tables in its SDP",
    "sdp_bs_throughput": "X1 stage in its SDP",
    "sdp_bn_throughput": "X2 stage in its SDP",
    "sdp_ew_throughput": "Y (element-wise) stage in its SDP",
    "pdp_throughput": "PDP",
    "cdp_throughput": "CDP",
}
#: optional units that tables list, and that results may be proven for, by attribute
UNITS = {
    "sdp_lut": "LUT",
    "bdma": "BDMA",
    "rubik": "Rubik",
    "winograd": "Winograd",
    "weight_compression": "compressed weights",
    "batch": "hardware batch",
    "cvsram": "CVSRAM",
}
REGISTER_MAPS = ("nv_small", "nv_full")
RTL_BRANCHES = ("nv_small", "master")
MAX_FILE = 1 << 16


@dataclass(frozen=True)
class Configuration:
    """One build of the hardware. Sizes are in bytes, throughputs in elements per cycle; None = not built.

    Source: spec/defs/<name>.spec of the hardware repository.
    """

    name: str
    precisions: tuple[Precision, ...]
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
    cbuf_entry_bytes: int
    weight_alignment: int
    image_offset_atom: int
    c_model_stops: bool
    register_map: str
    rtl_branch: str

    @property
    def cbuf_bank_bytes(self) -> int:
        """Bytes of a bank of the convolution buffer."""
        return self.cbuf_bank_width * self.cbuf_bank_depth_entries

    @property
    def cbuf_bank_entries(self) -> int:
        """Entries, as entry_per_slice counts them, of a bank of the convolution buffer."""
        return self.cbuf_bank_bytes // self.cbuf_entry_bytes

    def has(self, feature: str) -> bool:
        """Return True if a feature (a key of FEATURES) or a precision ("fp16") is built."""
        return bool(getattr(self, feature)) if feature in FEATURES else feature in self.precisions

    @by_annotations
    def refusal(self, feature: str, why: str = "") -> str:
        """The one text for a feature or precision that is not built, empty where it is; ``why`` says who needs it."""
        if self.has(feature):
            return ""
        having = [name for name, configuration in configurations().items() if configuration.has(feature)]
        names = f"configurations with it: {', '.join(having)}" if having else "no configuration has it"
        return f"{self.name} has no {FEATURES.get(feature, feature)}{f' ({why})' if why else ''}; {names}"

    @by_annotations
    def require(self, feature: str, who: str = "", why: str = "") -> None:
        """Raise ConfigError where a feature or precision is not built; ``who`` needs it, ``why`` says how."""
        if text := self.refusal(feature, why):
            raise ConfigError(f"{who}: {text}" if who else text)

    @by_annotations
    def require_precision(self, number: int, who: str) -> Precision:
        """The precision of that number. Raises ConfigError for one that does not exist or is not built."""
        precision = Precision(number)
        if not precision.known:
            known = ", ".join(f"{int(known_precision)} ({known_precision})" for known_precision in Precision)
            raise ConfigError(f"{who}: must be {known}, got {number}")
        self.require(precision, who)
        return precision

    @by_annotations
    def check_reach(self, space: str, base: int, end: int) -> None:
        """Raise ConfigError where the address registers cannot reach the ``end`` of a memory at ``base``."""
        if end > 1 << self.address_bits:
            raise ConfigError(
                f"{space}: end: must fit {self.address_bits} address bits ({self.name}), got 0x{end:x} from base "
                f"0x{base:x}. Choose a lower base."
            )


@cache
def configurations() -> dict[str, Configuration]:
    """NVIDIA's configurations by name."""
    return {name: _made(name, values, f"configurations.json: {name}") for name, values in _packaged("configurations")}


def _packaged(name: str) -> list[tuple[str, Document]]:
    """Return the entries of a table of this package."""
    text = resources.files("nvdla.emulator.hardware").joinpath(f"{name}.json").read_text(encoding="utf-8")
    return list(json.loads(text).items())


@cache
def built_in(config: Configuration) -> str | None:
    """Return the name of the built-in configuration that ``config`` equals in all but its name; None: no such one."""
    values = _fields_of(config)
    return next((name for name, known in configurations().items() if _fields_of(known) == values), None)


def proof(config: Configuration) -> Document:
    """Return for every feature of a configuration what its results and cycles were compared with (proof.yaml).

    ``results`` and ``cycles``: precision or unit -> "RTL ...", "C model ..." or None (extrapolated). A configuration
    that differs from every built-in one is extrapolated in everything.
    """
    known = dict(_packaged("proof")).get(built_in(config) or "", {})
    features = [*map(str, config.precisions), *(word for key, word in UNITS.items() if getattr(config, key))]
    proofs = {kind: {name: known.get(kind, {}).get(name) for name in features} for kind in ("results", "cycles")}
    return {"configuration": config.name, **proofs}


#: kinds of proof -> what is missing for a feature without one
_MISSING = {
    "results": "no network was compared with NVIDIA's C model or RTL",
    "cycles": "no RTL was measured",
}


def proof_lines(config: Configuration, kinds: tuple[str, ...] = ("results", "cycles")) -> list[str]:
    """Return the extrapolated features of a configuration, one line per kind."""
    proofs = proof(config)
    unproven = {kind: [name for name, basis in proofs[kind].items() if basis is None] for kind in kinds}
    return [
        f"{config.name}: {kind} are extrapolated for {', '.join(names)} ({_MISSING[kind]})"
        for kind, names in unproven.items()
        if names
    ]


def configuration(name: str) -> Configuration:
    """The configuration called ``name``, or that of a YAML file (``name`` ends in .yaml or .yml).

    Raises ConfigError that lists the names and suggests the nearest, or names the field of the file that is wrong.
    """
    known = configurations()
    if name in known:
        return known[name]
    if name.endswith((".yaml", ".yml")):
        return read_configuration(name)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(
        f"unknown hardware configuration {name!r}: must be one of {', '.join(known)}, or a .yaml file{hint}"
    )


def read_configuration(path: str) -> Configuration:
    """Read a custom configuration: a YAML mapping of the fields of Configuration, ``name`` included.

    ``base: NAME`` takes missing fields from one of NVIDIA's. Raises ConfigError naming file, field, value and limit.
    """
    from nvdla.util.yaml import read_yaml

    try:
        document = read_yaml(path, "configuration", MAX_FILE)
    except FormatError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: must be a mapping of the fields of a configuration")
    values = dict(document)
    base = values.pop("base", None)
    name = values.pop("name", Path(path).stem)
    if base is not None:
        if base not in configurations():
            raise ConfigError(f"{path}: base: must be one of {', '.join(configurations())}, got {base!r}")
        values = _fields_of(configurations()[base]) | values
    else:
        values = {"rtl_branch": "master"} | values
    if not isinstance(name, str) or not name or name in configurations():
        raise ConfigError(f"{path}: name: must be a text other than {', '.join(configurations())}, got {name!r}")
    return _made(name, values, path)


def _fields_of(config: Configuration) -> dict[str, Json]:
    return {field.name: getattr(config, field.name) for field in fields(config) if field.name != "name"}


def _made(name: str, values: Document, where: str) -> Configuration:
    """A configuration of checked values."""
    kinds = {field.name: field.type for field in fields(Configuration) if field.name != "name"}
    unknown, missing = values.keys() - kinds.keys(), kinds.keys() - values.keys()
    if unknown or missing:
        what, names = ("unknown", unknown) if unknown else ("missing", missing)
        raise ConfigError(f"{where}: {what} field {', '.join(sorted(map(str, names)))}; fields are {', '.join(kinds)}")
    for field, value in values.items():
        if not _fits(value, str(kinds[field])):
            raise ConfigError(f"{where}: {field}: must be {_WORDS[str(kinds[field])]}, got {value!r}")
    config = Configuration(name=name, **{**values, "precisions": tuple(map(Precision, values["precisions"]))})
    for right, problem in _rules(config):
        if not right:
            raise ConfigError(f"{where}: {problem}")
    return config


_WORDS = {
    "int": "a whole number from 1 to 1048576",
    "int | None": "a whole number from 1 to 1048576, or null",
    "bool": "true or false",
    "str": "a text",
    "tuple[Precision, ...]": "a list of int8, int16, fp16",
}


def _fits(value: object, kind: str) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "str":
        return isinstance(value, str)
    if kind == "tuple[Precision, ...]":
        titles = set(Precision)
        return isinstance(value, (list, tuple)) and bool(value) and all(feature in titles for feature in value)
    if value is None:
        return kind == "int | None"
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1 << 20


def _rules(config: Configuration) -> list[tuple[bool, str]]:
    """(whether it holds, what is wrong otherwise) of what fields demand of one another."""
    two = all(size & (size - 1) == 0 for size in (config.memory_atom, config.mac_atomic_c, config.mac_atomic_k))
    return [
        (
            config.register_map in REGISTER_MAPS,
            f"register_map: must be one of {', '.join(REGISTER_MAPS)}, got {config.register_map!r}",
        ),
        (
            config.rtl_branch in RTL_BRANCHES,
            f"rtl_branch: must be one of {', '.join(RTL_BRANCHES)}, got {config.rtl_branch!r}",
        ),
        (two, "memory_atom, mac_atomic_c and mac_atomic_k: must be powers of two"),
        (8 <= config.memory_atom <= 64, f"memory_atom: must be 8 to 64 bytes, got {config.memory_atom}"),
        (
            config.cbuf_bank_bytes % config.cbuf_entry_bytes == 0,
            f"cbuf_entry_bytes: must divide a bank of {config.cbuf_bank_bytes} bytes, got {config.cbuf_entry_bytes}",
        ),
        (2 <= config.cbuf_banks <= 32, f"cbuf_banks: must be 2 to 32, got {config.cbuf_banks}"),
        (
            config.cbuf_entry_bytes % config.memory_atom == 0,
            f"cbuf_entry_bytes: must be a multiple of memory_atom {config.memory_atom}, got {config.cbuf_entry_bytes}",
        ),
        (config.address_bits <= 64, f"address_bits: must be at most 64, got {config.address_bits}"),
        (not config.batch or config.max_batch is not None, "batch is true, so max_batch must be given"),
    ]
