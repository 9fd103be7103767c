"""Area and power of a configuration, FPGAs that it fits, and energy of a run, from published facts.

The facts are in ``silicon.yaml`` and ``energy.yaml``, each with its source. A question that they do not answer has no
number: outside the fitted range :func:`silicon` states the reason, and :func:`fpga_verdicts` answers "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import cast

import numpy as np

from nvdla.analysis.cycles.constants import kernel_groups, mac_cycles, stripes, taps
from nvdla.analysis.study import Study
from nvdla.emulator.hardware.configuration import Configuration, built_in
from nvdla.errors import ConfigError, FormatError
from nvdla.util.escaping import Document
from nvdla.util.precision import Precision
from nvdla.util.yaml import parse_yaml, read_yaml

Row = Document

#: what is fitted, with its unit
FITTED = {"mm2_28nm": "mm2, 28 nm", "mm2_16nm": "mm2, 16 nm", "mw_peak": "mW peak", "mw_average": "mW average"}
RESOURCES = ("lut", "ff", "bram", "dsp")


@cache
def facts() -> Document:
    """Return the published facts (silicon.yaml)."""
    return _packaged("silicon.yaml")


def _packaged(name: str) -> Document:
    return cast("Document", parse_yaml(resources.files("nvdla.analysis").joinpath(name).read_bytes(), name))


@dataclass(frozen=True)
class SiliconFit:
    """A fit ``a + b * MAC units + c * KiB of the buffer``; errors are relative to the rows.

    ``worst`` and ``mean``: over the rows; ``left_out``: worst error of a row that a fit of the others predicts.
    """

    a: float
    b: float
    c: float
    worst: float
    mean: float
    left_out: float

    def at(self, macs: int, cbuf_kib: float) -> float:
        """Return the fitted value of a configuration."""
        return self.a + self.b * macs + self.c * cbuf_kib


@cache
def fits() -> dict[str, SiliconFit]:
    """Return the fits of NVIDIA's rows, by the keys of FITTED (least squares of relative errors)."""
    rows = facts()["table"]["rows"]
    terms = np.array([(1, row["macs"], row["cbuf_kib"]) for row in rows], float)
    fitted = {}
    for key in FITTED:
        values = np.array([row[key] for row in rows], float)
        a, b, c = map(float, (factors := _solved(terms, values)))
        errors = np.abs(terms @ factors / values - 1)
        others = [
            abs(terms[at] @ _solved(np.delete(terms, at, 0), np.delete(values, at)) / values[at] - 1)
            for at in range(len(rows))
        ]
        fitted[key] = SiliconFit(a, b, c, float(errors.max()), float(errors.mean()), float(max(others)))
    return fitted


def _solved(terms: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(terms / values[:, None], np.ones(len(values)), rcond=None)[0]


def silicon(config: Configuration) -> Row:
    """Return area (mm2) and power (mW at 1 GHz, 16 nm) of a configuration, by the fits of NVIDIA's table.

    ``basis``: "row" for the MACs and buffer of a row, else "fit"; ``refused``: why the values are None (None: they are
    known).
    """
    macs, kib = config.mac_atomic_c * config.mac_atomic_k, config.cbuf_banks * config.cbuf_bank_bytes / 1024
    rows = facts()["table"]["rows"]
    reason = _refusal(config, macs, kib, rows)
    row = next((row for row in rows if (row["macs"], row["cbuf_kib"]) == (macs, kib)), None)
    values = {key: None if reason else float(f"{fit.at(macs, kib):.3g}") for key, fit in fits().items()}
    return {
        "configuration": config.name,
        "macs": macs,
        "cbuf_kib": int(kib) if kib == int(kib) else kib,
        **values,
        "basis": None if reason else "row" if row else "fit",
        "refused": reason,
    }


def _refusal(config: Configuration, macs: int, kib: float, rows: list[Row]) -> str | None:
    """Return why the fit does not cover a configuration: another arithmetic, a size or a combination of sizes outside
    the rows."""
    if config.precisions != (Precision.INT8,):
        return f"NVIDIA's table has int8 configurations only, this one has {', '.join(config.precisions)}"
    for what, value, unit in (("macs", macs, "MAC units"), ("cbuf_kib", kib, "KiB of buffer")):
        least, most = min(row[what] for row in rows), max(row[what] for row in rows)
        if not least <= value <= most:
            return f"{value:g} {unit} are outside the fitted range {least} to {most}"
    terms = np.array([(1, row["macs"], row["cbuf_kib"]) for row in rows], float)
    spread = np.linalg.inv(terms.T @ terms)
    leverages = [float(term @ spread @ term) for term in (np.array((1, macs, kib)), *terms)]
    if leverages[0] > max(leverages[1:]):
        return f"{macs} MAC units with {kib:g} KiB of buffer: no row is near this combination"
    return None


def silicon_notes() -> list[str]:
    """Return notes on area and power: source, errors, conditions."""
    table = facts()["table"]
    errors = "; ".join(
        f"{unit}: mean {fits()[key].mean:.1%}, worst {fits()[key].worst:.1%}, row left out {fits()[key].left_out:.1%}"
        for key, unit in FITTED.items()
    )
    return [
        f"area and power: fit of the seven rows of NVIDIA's table ({table['source']}), 1 GHz, int8, memories included",
        f"errors of the fit: {errors}",
        f"not stated by NVIDIA: {table['unstated']}",
    ]


# ---- FPGA


def fpga_verdicts(config: Configuration) -> list[Row]:
    """Return for each known board whether a configuration fits: "fits", "does not fit" or "unknown", with the reason
    and the sources. Only reports of the same built-in configuration count."""
    reports = [report for report in facts()["fpga_reports"] if report["configuration"] == built_in(config)]
    return [
        {"configuration": config.name, "board": board["board"], "device": board["device"], **_verdict(reports, board)}
        for board in facts()["boards"]
    ]


def _verdict(reports: list[Row], board: Row) -> Row:
    for report in reports:
        if report["device"] == board["device"] and report["fits"] is not None:
            return _answer("fits" if report["fits"] else "does not fit", "reported", report["source"])
    measured = [report for report in reports if any(report[name] is not None for name in RESOURCES)]
    if not measured:
        return _answer("unknown", "no public report", None)
    whole = [report for report in measured if all(report[name] is not None for name in RESOURCES)]
    measured.sort(key=lambda report: report["device"] != board["device"])
    lacking = {name: [report for report in measured if _exceeds(report, board, name)] for name in RESOURCES}
    for name, exceeding in lacking.items():
        stated = [report for report in measured if report[name] is not None]
        if exceeding and len(exceeding) == len(stated):
            reason = f"needs {exceeding[0][name]:,} {name.upper()}, has {board[name]:,}"
            return _answer("does not fit", reason, f"{exceeding[0]['source']}; {board['source']}")
    if whole and all(board[name] is not None for name in RESOURCES):
        return _answer("fits", "all four resources suffice", f"{whole[0]['source']}; {board['source']}")
    missing = [name.upper() for name in RESOURCES if board[name] is None or not any(e[name] for e in measured)]
    return _answer("unknown", f"no public number: {', '.join(missing)}", None)


def _exceeds(report: Row, board: Row, name: str) -> bool:
    return report[name] is not None and board[name] is not None and report[name] > board[name]


def _answer(verdict: str, reason: str, source: str | None) -> Row:
    return {"verdict": verdict, "reason": reason, "source": source}


# ---- energy

#: events of a run: what they count, and the component and action in Accelergy's files
EVENTS = {
    "macs": ("mac_array", "mac"),
    "cycles": ("nvdla", "cycle"),
    "cbuf_kib_cycles": ("cbuf", "kib_cycle"),
    "cbuf_read_bytes": ("cbuf", "read_byte"),
    "cbuf_write_bytes": ("cbuf", "write_byte"),
    "sdp_elements": ("sdp", "element"),
    "pdp_elements": ("pdp", "element"),
    "cdp_elements": ("cdp", "element"),
    "dram_read_bytes": ("dram", "read_byte"),
    "dram_write_bytes": ("dram", "write_byte"),
    "cvsram_read_bytes": ("cvsram", "read_byte"),
    "cvsram_write_bytes": ("cvsram", "write_byte"),
}
#: events that count time, not work
OF_TIME = ("cycles", "cbuf_kib_cycles")
RELATIVE = "energy is for relative comparisons only: no silicon was measured"


def event_counts(study: Study) -> dict[str, int]:
    """Return the events of a run by EVENTS, without CPU operations. SDP, PDP and CDP count elements of their inputs.

    Raises ConfigError for a run that never ends.
    """
    if study.schedule.total is None:
        raise ConfigError(f"{study.loadable.name}: energy: must be of a run that ends, got a deadlock")
    estimates = study.estimates.values()
    kib = study.config.cbuf_banks * study.config.cbuf_bank_bytes / 1024
    counts = dict.fromkeys(EVENTS, 0)
    counts |= {
        "macs": sum(estimate.macs for estimate in estimates),
        "cycles": study.schedule.total,
        "cbuf_kib_cycles": round(kib * study.schedule.total),
        "dram_read_bytes": sum(estimate.read_bytes - estimate.cvsram_read_bytes for estimate in estimates),
        "dram_write_bytes": sum(estimate.written_bytes - estimate.cvsram_written_bytes for estimate in estimates),
        "cvsram_read_bytes": sum(estimate.cvsram_read_bytes for estimate in estimates),
        "cvsram_write_bytes": sum(estimate.cvsram_written_bytes for estimate in estimates),
    }
    for node in study.operations:
        if node.engine in ("sdp", "pdp", "cdp"):
            counts[f"{node.engine}_elements"] += int(np.prod(node.input or (0,), dtype=np.int64))
        shape = study.estimates[node.key].shape
        if node.engine == "conv" and shape and shape.conv:
            conv, values = shape.conv, study.estimates[node.key].constants
            counts["cbuf_write_bytes"] += conv.data_bytes + conv.weight_bytes
            lines = (conv.out_height if conv.by_line else 1) * conv.batch
            loads = sum(count for _, count in stripes(conv, values)) * lines * taps(conv, values)
            weights = loads * sum(kernel_groups(conv.kernels, values.kernels))
            counts["cbuf_read_bytes"] += (mac_cycles(conv, values) + weights) * values.channels * conv.element_bytes
    return counts


def energy(study: Study, path: str | None = None) -> list[Row]:
    """Return one row per event: its count, picojoules per event (None: no number), microjoules, and the origin.

    Args:
        study: the network on its configuration and memory.
        path: a YAML file with the keys of EVENTS, each with ``pj`` and ``source`` (default: ``energy.yaml``).

    Returns:
        Rows with the keys ``event``, ``count``, ``pj``, ``microjoules`` and ``source``.

    Raises:
        FormatError: the file has another structure.
        ConfigError: a run never ends.
    """
    table = read_yaml(path, "energy coefficients") if path else _packaged("energy.yaml")
    where = path or "energy.yaml"
    if not isinstance(table, dict) or table.keys() - EVENTS.keys():
        unknown = ", ".join(map(str, table.keys() - EVENTS.keys())) if isinstance(table, dict) else type(table).__name__
        raise FormatError(f"{where}: events: must be among {', '.join(EVENTS)}, got {unknown}")
    rows = []
    for event, count in event_counts(study).items():
        entry = table.get(event) or {"pj": None, "source": f"not in {where}"}
        value = entry.get("pj") if isinstance(entry, dict) else entry
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12
        if not isinstance(entry, dict) or not (value is None or number):
            raise FormatError(f"{where}: {event}: must be pj (a number from 0, or null) and source, got {entry!r}")
        energy = None if value is None else count * value / 1e6
        source = str(entry.get("source") or "not stated")
        rows.append({"event": event, "count": count, "pj": value, "microjoules": energy, "source": source})
    return rows


def action_counts(study: Study) -> str:
    """Return the events of a run that occur as an action-count file of Accelergy (version 0.2)."""
    lines = ["action_counts:", "  version: 0.2", "  subtree:", "    - name: system", "      local:"]
    components: dict[str, list[tuple[str, int]]] = {}
    for event, count in event_counts(study).items():
        component, action = EVENTS[event]
        if count:
            components.setdefault(component, []).append((action, count))
    for component, actions in components.items():
        lines += [f"        - name: {component}", "          action_counts:"]
        for action, count in actions:
            lines += [f"            - name: {action}", f"              counts: {count}"]
    return "\n".join([*lines, ""])
