"""The examination: what is written down in a loadable, and what a run on given inputs shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nvdla.compare.observation import Observation, Observer
from nvdla.discovery import modules_of
from nvdla.doctor.chart import CHECKS, Chart
from nvdla.doctor.health import Checkup
from nvdla.errors import NvdlaError
from nvdla.lint.findings import SEVERITIES, Finding, sort_key
from nvdla.lint.linter import MOST_OF_A_RULE, lint
from nvdla.lint.registry import Rule
from nvdla.loadable.model import Loadable
from nvdla.program.naming import Names
from nvdla.program.program import Program

#: makes the surfaces of each run once the network's inputs are known
Inputs = Callable[[Any], list[list[bytes]]]


@dataclass(frozen=True)
class Examination:
    """All findings (the worst first), the scales, and the health of every tensor that was seen."""

    loadable: str
    configuration: str
    abi: str
    runs: int
    run_error: str | None
    findings: tuple[Finding, ...]
    scales: list[dict[str, Any]] = field(repr=False)
    tensors: list[dict[str, Any]] = field(repr=False)

    def count(self, severity: str) -> int:
        """How many findings have this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return {
            "loadable": self.loadable,
            "configuration": self.configuration,
            "abi": self.abi,
            "runs": self.runs,
            "run_error": self.run_error,
            "counts": {severity: self.count(severity) for severity in SEVERITIES},
            "findings": [finding.as_dict() for finding in self.findings],
            "scales": self.scales,
            "tensors": self.tensors,
        }


def checks() -> list[Rule]:
    """The doctor's own checks in the order of their documentation: every module ``*_checks.py`` of this package."""
    modules_of("nvdla.doctor", "_checks")
    return sorted(CHECKS, key=lambda each: each.chapter)


@dataclass
class FirstRun:
    """The first run of an examination: its raw inputs and outputs, and what was written to memory. ``runtime`` is None
    where there was none that came to its end."""

    runtime: Any = None
    surfaces: list[bytes] = field(default_factory=list, repr=False)
    outputs: list[bytes] = field(default_factory=list, repr=False)
    observations: list[Observation] = field(default_factory=list, repr=False)


def examine(
    loadable: Loadable,
    config: str = "auto",
    abi: str = "auto",
    *,
    names: Names | None = None,
    calibration: dict[str, dict[str, Any]] | None = None,
    inputs: Inputs | None = None,
    threads: int | None = None,
    recording: FirstRun | None = None,
    random: bool = False,
) -> Examination:
    """Examine a loadable: the linter's rules, the doctor's checks, and with ``inputs`` a run on each.

    ``recording`` is filled by the first run. ``random``: the inputs are random numbers, so checks that judge what real
    data show are left out. Raises ConfigError for an unknown configuration, FormatError for inputs
    that do not fit; a loadable that cannot run is a finding.
    """
    names = names or Names()
    report = lint(loadable, config, abi, names.layers)
    checkup, runs, run_error = Checkup(names), 0, None
    accumulators: dict[tuple[int, int], int] = {}
    if inputs is not None:
        patient = _Patient(loadable, report.config.name, abi, threads, names.layers)
        runs, run_error = _run(patient, inputs, checkup, accumulators, recording or FirstRun())
    chart = Chart(
        Program.of(loadable, report.config, abi, names.layers, checked=False),
        names,
        calibration,
        checkup.tensors,
        run_error if report.clean else None,  # the linter has said why
        accumulators,
    )
    findings = [
        *report.findings,
        *(each for rule in checks() if not (random and rule.of_data) for each in _findings(rule, chart)),
    ]
    return Examination(
        report.loadable,
        report.config.name,
        report.abi,
        runs,
        run_error,
        tuple(sorted(findings, key=sort_key)),
        [each.as_dict() for each in chart.scales],
        [each.as_dict() for each in checkup.tensors.values()],
    )


def _findings(rule: Rule, chart: Chart) -> list[Finding]:
    try:
        return list(rule.findings(chart))[:MOST_OF_A_RULE]
    except NvdlaError as error:
        return [Finding("error", rule.name, rule.headline, f"the check cannot be made: {error}", "Repair the file.")]


@dataclass(frozen=True)
class _Patient:
    """What is run."""

    loadable: Loadable
    config: str
    abi: str
    threads: int | None
    layers: dict[tuple[int, int], str]


def _run(
    patient: _Patient,
    inputs: Inputs,
    checkup: Checkup,
    accumulators: dict[tuple[int, int], int],
    recording: FirstRun,
) -> tuple[int, str | None]:
    """Run on every input. Returns how many runs there were, and why the loadable cannot run."""
    from nvdla.runtime import Runtime

    done = 0

    def see(observation: Observation) -> None:
        checkup.see(observation)
        if done == 0 and observation.surface is not None:
            recording.observations.append(observation)
        if observation.engine == "conv":
            place = observation.task, observation.index
            accumulators[place] = accumulators.get(place, 0) + observation.statistics.get("saturated", 0)

    try:
        runtime = Runtime(patient.loadable, patient.config, patient.abi, patient.threads)
    except NvdlaError as error:
        return 0, str(error)
    program = runtime.program(patient.layers)
    for surfaces in inputs(runtime):
        try:
            outputs = runtime.run_raw(surfaces, Observer(program, see).see)
        except NvdlaError as error:
            return done, str(error)
        if done == 0:
            recording.runtime, recording.surfaces, recording.outputs = runtime, surfaces, outputs
        done += 1
    return done, None
