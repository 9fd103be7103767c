"""The examination: what is written down in a loadable, and what a run on given inputs shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nvdla.compare.naming import Names
from nvdla.compare.observation import Observation, Observer
from nvdla.descriptors import detect
from nvdla.doctor.chart import CHECKS, Chart
from nvdla.doctor.health import Checkup
from nvdla.errors import NvdlaError
from nvdla.lint.findings import SEVERITIES, Finding, sort_key
from nvdla.lint.linter import MOST_OF_A_RULE, lint
from nvdla.lint.registry import Rule
from nvdla.loadable.model import Loadable

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
        return sum(finding.severity == severity for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
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
    """All of the doctor's own checks in the order of their documentation."""
    from nvdla.doctor import (  # noqa: F401  (each registers its checks)
        calibration_checks,
        fault_checks,
        number_checks,
        run_checks,
    )

    return CHECKS


def examine(
    loadable: Loadable,
    config: str = "auto",
    abi: str = "auto",
    *,
    names: Names | None = None,
    calibration: dict[str, dict[str, Any]] | None = None,
    inputs: Inputs | None = None,
    threads: int | None = None,
) -> Examination:
    """Examine a loadable: the linter's rules, the doctor's checks, and with ``inputs`` a run on each.

    Raises ConfigError for an unknown configuration, FormatError for inputs that do not fit; a loadable that cannot run
    is a finding.
    """
    names = names or Names()
    report = lint(loadable, config, abi, names.layers)
    checkup, accumulators, runs, run_error = Checkup(), {}, 0, None
    if inputs is not None:
        runs, run_error = _run(loadable, report.config.name, abi, threads, names, inputs, checkup, accumulators)
    chart = Chart(
        loadable,
        report.config,
        detect(loadable, abi)[0],
        names.layers,
        names,
        calibration,
        checkup.tensors,
        run_error if report.clean else None,  # the linter has said why
        accumulators,
    )
    findings = [*report.findings, *(each for rule in checks() for each in _findings(rule, chart))]
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
        return [Finding("error", rule.name, f"the check cannot be made: {error}", "Repair the file.")]


def _run(
    loadable: Loadable,
    config: str,
    abi: str,
    threads: int | None,
    names: Names,
    inputs: Inputs,
    checkup: Checkup,
    accumulators: dict[tuple[int, int], int],
) -> tuple[int, str | None]:
    """Run on every input. Returns how many runs there were, and why the loadable cannot run."""
    from nvdla.runtime import Runtime

    def see(observation: Observation) -> None:
        checkup.see(observation)
        if observation.engine == "conv":
            place = observation.task, observation.index
            accumulators[place] = accumulators.get(place, 0) + observation.statistics.get("saturated", 0)

    try:
        runtime = Runtime(loadable, config, abi, threads)
    except NvdlaError as error:
        return 0, str(error)
    done = 0
    for surfaces in inputs(runtime):
        try:
            runtime.run_raw(surfaces, Observer(names.layers, see).see)
        except NvdlaError as error:
            return done, str(error)
        done += 1
    return done, None
