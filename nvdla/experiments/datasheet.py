"""Datasheet of a configuration: its fields, proof, area, power, boards, and networks on it, as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from nvdla.analysis.explain import USES
from nvdla.analysis.silicon import RELATIVE, fpga_verdicts, silicon
from nvdla.emulator.hardware.configuration import Configuration, proof, proof_lines
from nvdla.experiments.campaign.journal import Record
from nvdla.experiments.exploration import (
    HEAD,
    cells_of,
    cycle_notes,
    extrapolated,
    label,
    page_of,
    plot_section,
    remarks,
    silicon_section,
    words,
)
from nvdla.util import html
from nvdla.util.escaping import Document

#: fields of a configuration on its page, in words; those that only the emulator needs are left out
FIELDS = {
    "precisions": "precisions",
    "memory_atom": "memory atom, bytes",
    "mac_atomic_c": "MAC array, channels",
    "mac_atomic_k": "MAC array, kernels",
    "cbuf_banks": "CBUF banks",
    "cbuf_bank_bytes": "CBUF bank, bytes",
    "cbuf_bank_width": "CBUF bank width, bytes",
    "sdp_bs_throughput": "SDP X1, elements per cycle",
    "sdp_bn_throughput": "SDP X2, elements per cycle",
    "sdp_ew_throughput": "SDP Y, elements per cycle",
    "sdp_lut": "SDP lookup tables",
    "pdp_throughput": "PDP, elements per cycle",
    "cdp_throughput": "CDP, elements per cycle",
    "bdma": "BDMA",
    "rubik": "Rubik",
    "winograd": "Winograd mode",
    "weight_compression": "compressed weights",
    "batch": "hardware batches",
    "max_batch": "largest hardware batch",
    "dram_width_bits": "memory port, bits",
    "dram_latency_cycles": "memory latency that its queues are made for, cycles",
    "cvsram": "CVSRAM",
    "cvsram_width_bits": "CVSRAM port, bits",
    "address_bits": "address bits",
    "register_map": "register map",
}

_FAULT_HEAD = ("network", "faults", "runs", "silent wrong class", "interval", "stopped")


def datasheet(
    config: Configuration,
    points: Sequence[Record],
    faults: Sequence[Document] = (),
    table: str = "",
    conditions: str = "",
) -> str:
    """Return a page about one configuration.

    Args:
        config: the configuration.
        points: records of an :class:`Exploration`, each with the ``network`` that it is of; those of other
            configurations are compared with it.
        faults: documents of ``nvdla faults``.
        table: the points as CSV.
        conditions: clock, memory and firmware of the points.

    Returns:
        A self-contained HTML page. Every published number has its source, and what no model was compared with is
        marked as extrapolated.
    """
    done = [point for point in points if "error" not in point]
    lines = [f"{point['network']}: {line}" for point in done for line in remarks([point])]
    lines = [*extrapolated(done), *dict.fromkeys(lines)]
    failures = (f"{point['network']} on {point['config']}: {point['error']}" for point in points if "error" in point)
    values = {name: getattr(config, name) for name in FIELDS} | {"max_batch": config.max_batch or 1}
    fields = [(text, _field(values[name])) for name, text in FIELDS.items()]
    silicons = [silicon(config), *(point["silicon"] for point in done)]
    plot = plot_section(done, html.table(("network", *HEAD), map(_network_row, done)))
    csv = html.download("points.csv", table, "The points as CSV") if table and done else ""
    return page_of(
        f"{config.name}: datasheet",
        plot,
        html.section("Configuration", html.table((), fields)),
        _proof_section(config),
        silicon_section(silicons),
        html.section("FPGA boards", _verdict_table(config), "Public reports of this configuration, NVDLA alone."),
        html.section("Networks", html.paragraph(f"{RELATIVE}.") + plot + csv if done else "", f"{conditions}."),
        html.section("Where the cycles go", html.table(("network", *words(USES)), map(_uses_row, done))),
        html.section("Fault sensitivity", html.table(_FAULT_HEAD, map(_fault_row, faults))),
        html.section("Notes", html.items([*lines, *cycle_notes()] if done else [])),
        html.section("Impossible", html.items(failures)),
    )


def _field(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not built" if value is None else str(value)


def _proof_section(config: Configuration) -> str:
    proofs = proof(config)
    rows = [
        (feature, basis or "extrapolated", proofs["cycles"][feature] or "extrapolated")
        for feature, basis in proofs["results"].items()
    ]
    table = html.table(("feature", "results compared with", "cycles compared with"), rows)
    return html.section("What is proven", table + html.items(proof_lines(config)))


def _verdict_table(config: Configuration) -> str:
    head = ("board", "device", "verdict", "reason", "source")
    return html.table(head, [[verdict[key] or "-" for key in head] for verdict in fpga_verdicts(config)])


def _network_row(point: Record) -> tuple[str, ...]:
    return point["network"], *cells_of(point)


def _uses_row(point: Record) -> tuple[str, ...]:
    cycles, total = point["accounting"] or {}, point["cycles"] or 1
    return label(point), *(f"{cycles[use] / total:.1%}" if cycles else "-" for use in USES)


def _fault_row(document: Document) -> tuple[str, ...]:
    summary = document["summary"]["all"]
    silent, stopped = summary["sdc1"], summary["stopped"]
    interval = f"{silent['low']:.2%} to {silent['high']:.2%}"
    return (
        document["network"],
        f"{summary['faults']:,}",
        f"{summary['samples']:,}",
        f"{silent['value']:.2%}",
        f"{interval} ({document['summary']['confidence']:.0%})",
        f"{stopped['value']:.2%}",
    )
