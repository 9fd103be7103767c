"""Lint rules: registry, findings and context, and the linter that applies them."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Any

from nvdla.emulator.execution.dry_run import failure
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.register_file import register_map
from nvdla.emulator.memory.linker import LinkedLoadable
from nvdla.errors import NvdlaError, ScheduleError
from nvdla.loadable.descriptors.enums import Event, OpType
from nvdla.loadable.descriptors.task import DlaTask, EmuTask
from nvdla.loadable.model import AddressEntry, Loadable
from nvdla.loadable.reader import load
from nvdla.program.naming import compiled_for
from nvdla.program.operation import Key, Operation, short_layer
from nvdla.program.program import UNKNOWN, Program, by_task, check_built_in
from nvdla.program.values import OfProgram
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document
from nvdla.util.registry import AnyFinding, Severity, modules_of


@dataclass(frozen=True)
class Finding(AnyFinding):
    """Problem in a program.

    ``rule`` is stable, ``headline`` names the problem ("dead channels"); task, operation, engine and layer are None for
    a problem of the whole file.
    """

    rule: str
    headline: str
    evidence: str
    advice: str
    task: int | None = None
    operation: int | None = None
    engine: str | None = None
    layer: str | None = None

    @property
    def place(self) -> str:
        """Return where, in words: "operation 0/3 (CONV, layer conv2)"."""
        if self.task is None:
            return "loadable"
        if self.operation is None:
            return f"task {self.task}"
        layer = f", layer {short_layer(self.layer)}" if self.layer else ""
        return f"operation {self.task}/{self.operation} ({str(self.engine).upper()}{layer})"


def sort_key(finding: Finding) -> tuple[int, int, int, str]:
    """The worst first, then in the order of the work."""
    return (
        finding.severity.rank,
        -1 if finding.task is None else finding.task,
        -1 if finding.operation is None else finding.operation,
        finding.rule,
    )


#: what a rule yields: evidence alone, or evidence about an operation or a task (its id)
Said = str | tuple[Operation | int, str]
Check = Callable[[Any], Iterator[Said]]

RULES: list[Rule] = []


@dataclass(frozen=True)
class Rule:
    """One rule.

    ``headline`` names the finding in a few words; ``text`` is its documentation, ``chapter`` its chapter there.

    ``of_atoms``: the rule does not apply when the loadable's atom size is not that of the configuration;
    ``of_data``: nor when a run was on random numbers; ``of_graph``: nor when descriptors cannot be read.
    """

    name: str
    headline: str
    chapter: str
    severity: Severity
    advice: str
    text: str
    check: Check
    of_atoms: bool = False
    of_data: bool = False
    of_graph: bool = False

    def findings(self, context: object) -> Iterator[Finding]:
        """Return the findings of the rule in a context."""
        for statement in self.check(context):
            where, evidence = (None, statement) if isinstance(statement, str) else statement
            if isinstance(where, Operation):
                place: tuple[object, ...] = (where.task, where.index, where.engine, where.layer)
            else:
                place = (where, None, None, None)
                evidence = evidence.removeprefix(f"task {where}, ").removeprefix(f"task {where}: ")  # it is the place
            yield self.finding(evidence, *place)

    def finding(self, evidence: str, *place: Any, failed: bool = False) -> Finding:
        """Return a finding of this rule; ``failed``: the rule itself stopped at a broken file."""
        severity, advice = (Severity.ERROR, "Repair the file.") if failed else (self.severity, self.advice)
        return Finding(severity, self.name, self.headline, evidence, advice, *place)


def rule(
    severity: str,
    advice: str,
    of_atoms: bool = False,
    of_data: bool = False,
    into: list[Rule] | None = None,
    *,
    headline: str,
    of_graph: bool = False,
) -> Callable[[Check], Check]:
    """Register a rule; its name is the function's with hyphens, its documentation the docstring.

    ``headline``: what is wrong, in few words ("dead channels"). ``into``: the list that takes it, :data:`RULES` where
    none is given.
    """
    rules = RULES if into is None else into

    def register(check: Check) -> Check:
        text = inspect.cleandoc(check.__doc__ or "")
        chapter = check.__module__.rpartition(".")[2].removesuffix("_rules").removesuffix("_checks")
        name = check.__name__.replace("_", "-")
        rules.append(
            Rule(name, headline, chapter, Severity(severity), advice, text, check, of_atoms, of_data, of_graph)
        )
        return check

    return register


@dataclass(frozen=True)
class Context(OfProgram):
    """A program (decoded with ``checked=False``) with the names that rules use for its parts.

    ``linked``: the memory image for the dry run, instead of a new one.
    """

    linked: LinkedLoadable | None = field(default=None, repr=False, kw_only=True)

    @property
    def layers(self) -> Mapping[tuple[int, int], str]:
        """(task, operation) -> name of the layer."""
        return self.program.layers

    @property
    def tasks(self) -> dict[int, DlaTask]:
        """Decoded tasks of the accelerator by id."""
        return self.program.dla_tasks

    @property
    def cpu_tasks(self) -> dict[int, EmuTask]:
        """Decoded tasks of the CPU by id."""
        return self.program.cpu_tasks

    @property
    def broken(self) -> Mapping[int, str]:
        """Why tasks could not be decoded, by task id."""
        return self.program.broken

    @property
    def subjects(self) -> list[Operation]:
        """All hardware operations of known type, task by task, of all ROIs."""
        return self.program.hardware_operations

    def operations_of(self, task: int) -> Sequence[Operation]:
        """The hardware operations of one task, of its first region of interest."""
        return self._by_task.get(task, ())

    @cached_property
    def _by_task(self) -> dict[int, list[Operation]]:
        return by_task([subject for subject in self.subjects if subject.roi == 0])

    def of_type(self, *types: OpType) -> Iterator[Operation]:
        """The operations of these engines."""
        return (subject for subject in self.subjects if subject.type in types)

    def address(self, subject: Operation, index: int) -> AddressEntry | None:
        """The entry of an address index of an operation's task; None where it leads nowhere."""
        window = subject.finder.window(index)
        return None if window is None else window[0]


#: findings of one rule: a broken file should not fill the screen
MOST_OF_A_RULE = 20
OTHER_ATOMS = "atoms-have-the-size-of-the-memory-atom"
DRY_RUN = "the-dry-run-finishes"
READABLE = "descriptors-can-be-read"
#: rules that hold on every configuration
WITHOUT_CONFIGURATION = (READABLE, "the-container-is-consistent", "the-identifier-is-known")
OVERRUN = "surfaces-are-in-their-windows"


@dataclass(frozen=True)
class Report:
    """Findings, the worst first. ``left_out``: how many more of a rule there were."""

    loadable: str
    config: Configuration
    config_reason: str
    abi: str
    findings: tuple[Finding, ...]
    left_out: int = 0

    @property
    def configuration(self) -> str | None:
        """Name of the configuration; None if it is unknown, so that no rule about it was applied."""
        return None if self.config_reason == UNKNOWN else self.config.name

    def count(self, severity: str) -> int:
        """Count the findings of a severity.

        Args:
            severity: Name of the severity.

        Returns:
            Number of findings.
        """
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def clean(self) -> bool:
        """No error."""
        return not self.count("error")

    def as_dict(self) -> Document:
        """Return the report as plain data, for JSON."""
        return {
            "loadable": self.loadable,
            "configuration": self.configuration,
            "configuration_reason": self.config_reason,
            "abi": self.abi,
            "counts": {severity: self.count(severity) for severity in map(str, Severity)},
            "findings": [finding.as_dict() for finding in self.findings],
            "left_out": self.left_out,
        }


def rules() -> list[Rule]:
    """Return all rules of the modules ``*_rules.py`` in the order of their documentation, the dry run last."""
    modules_of("nvdla.checks.lint", "_rules")
    return sorted(RULES, key=lambda rule: (rule.name == DRY_RUN, rule.chapter))


@by_annotations
def lint_file(
    path: str | os.PathLike[str],
    config: str = "auto",
    abi: str = "auto",
    layers: dict[tuple[int, int], str] | None = None,
    dry: bool = True,
) -> Report:
    """Apply every rule to a file.

    Args:
        path: File of the loadable.
        config: Name of the configuration, or "auto".
        abi: "auto", "old" or "new".
        layers: Layer names for the findings, by (task, operation).
        dry: Whether to do the dry run.

    Returns:
        The findings, the worst first.

    Raises:
        LoadableError: The file is not a loadable.
        ConfigError: The configuration is unknown.
    """
    return lint(load(path, checked=False), config, abi, layers, dry)


@by_annotations
def lint(
    subject: Loadable | Program,
    config: str = "auto",
    abi: str = "auto",
    layers: dict[tuple[int, int], str] | None = None,
    dry: bool = True,
    linked: LinkedLoadable | None = None,
) -> Report:
    """Apply every rule.

    Args:
        subject: A loadable, or a decoded program, which has its configuration, ABI and layer names already.
        config: Name of the configuration, or "auto".
        abi: "auto", "old" or "new".
        layers: Layer names for the findings, by (task, operation).
        dry: Whether to do the dry run.
        linked: Memory image of the program for the dry run, instead of a new one.

    Returns:
        The findings, the worst first.

    Raises:
        ConfigError: The configuration is unknown, or the file was compiled for one that is not built in.
    """
    if isinstance(subject, Program):
        program = subject
    else:
        program = Program.of(subject, config, abi, layers, checked=False)
        stated = compiled_for(subject) if config == "auto" and program.config_reason != UNKNOWN else ""
        if stated:
            check_built_in(stated, subject.name)
    context = Context(program, linked=linked)
    findings: list[Finding] = []
    left_out = 0
    for rule in sorted(rules(), key=lambda rule: rule.name != READABLE):
        errors = {finding.rule for finding in findings if finding.severity == "error"}
        if (rule.name == DRY_RUN and (errors or not dry)) or (rule.of_atoms and OTHER_ATOMS in errors):
            continue  # the dry run stops at the first problem, which is known already
        if program.config_reason == UNKNOWN and rule.name not in WITHOUT_CONFIGURATION:
            continue
        if rule.of_graph and READABLE in errors:
            continue  # an index that does not exist also breaks the order of the operations
        rule_findings = list(_limited(rule, context))
        left_out += max(len(rule_findings) - MOST_OF_A_RULE, 0)
        findings += rule_findings[:MOST_OF_A_RULE]
    ordered = tuple(sorted(findings, key=sort_key))
    return Report(program.loadable.name, program.config, program.config_reason, program.abi.name, ordered, left_out)


def refusal(program: Program, rehearse: Callable[[], NvdlaError | None] | None = None) -> str | None:
    """Return why a program cannot run on its configuration, None where no rule forbids it and no engine refuses it.

    In the dry run an access that leaves its region continues in the memory that follows, as in hardware. A deadlock
    alone does not count. ``rehearse``: the dry run, default :func:`nvdla.emulator.execution.dry_run.failure`.
    """
    report = lint(program, dry=False)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if all(finding.rule == OVERRUN for finding in errors):
        failed = rehearse() if rehearse else failure(program.loadable, program.abi, program.config)
        if failed is None or (not errors and isinstance(failed, ScheduleError)):
            return None
        if not errors:
            return str(failed)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0].place}: {errors[0].evidence}{more}"


def _limited(rule: Rule, context: Context) -> list[Finding]:
    """A rule's findings. One that stumbles over a broken file has found what others name."""
    try:
        return list(rule.findings(context))
    except NvdlaError as error:
        return [rule.finding(f"the rule failed: {error}", failed=True)]


#: operations that are looked at in all to find orders in one task
MOST_LOOKS = 1 << 22


class Order:
    """The order that a dependency graph enforces, of ROI 0.

    One operation is finished before another begins when a completion event leads from one to the other, or when it is
    earlier on the same engine. Who hands over on the fly is finished when the one who takes is; and who takes begins
    after the one who hands over. Operations joined on the fly run at the same time: nothing orders them.
    """

    def __init__(self, task: DlaTask, takers: Mapping[Key, Operation], *, overlap_of: OpType | None = None) -> None:
        """``takers``: who takes an operation's result on the fly (:attr:`nvdla.program.Program.takers`).

        ``overlap_of``: an engine whose next operation may begin while the one before is still at work, as the parts of
        the convolution pipeline do.
        """
        self._task = task
        self._overlap_of = overlap_of
        keys = ((task.task.id, 0, index) for index in range(task.network.num_operations))
        self._takers = {key[2]: [takers[key].index] for key in keys if key in takers}
        self._known: dict[int, set[int]] = {}
        self._work = 0

    def is_ordered(self, index: int, other: int) -> bool:
        """Check whether one of two operations is certainly finished before the other begins. Graphs that no compiler
        makes
        can take longer to follow than is looked; then it is treated as true."""
        return other in self._after(index) or index in self._after(other) or self._work > MOST_LOOKS

    def is_after(self, index: int, other: int) -> bool:
        """Check whether an operation certainly begins after another is finished."""
        return index in self._after(other)

    def _after(self, index: int) -> set[int]:
        """All operations that certainly begin after one is finished."""
        if index not in self._known:
            todo, seen = self._followers(index), set[int]()
            while todo and self._work <= MOST_LOOKS:
                current = todo.pop()
                if current not in seen:
                    seen.add(current)
                    self._work += 1
                    todo += self._followers(current) + self._takers.get(current, [])
            self._known[index] = seen
        return self._known[index]

    def _followers(self, index: int) -> list[int]:
        """Return who waits for the completion of an operation, or of those that it hands over to, or is next on its
        engine."""
        common = self._task.dependencies[index]
        count = self._task.network.num_operations
        queue = None if common.op_type == self._overlap_of else common.op_type
        followers = [
            consumer.index
            for kind, consumer in enumerate(common.consumers)
            if 0 <= consumer.index < count and (consumer.event == Event.OP_COMPLETED or kind == queue)
        ]
        for taker in self._takers.get(index, []):
            followers += self._followers(taker)
        return followers


_TABLE = resources.files("nvdla.checks.lint").joinpath("registers.json").read_text(encoding="utf-8")
#: field of the descriptor ("src_data." ... are cubes of the surface) -> unit, register, field, what is subtracted
FIELDS: dict[OpType, dict[str, tuple[str, str, str, int]]] = {
    OpType[engine]: {path: (unit, name, part, minus) for path, (unit, name, part, minus) in fields.items()}
    for engine, fields in json.loads(_TABLE).items()
}


def register_problems(subject: Operation) -> Iterator[str]:
    """Fields of the operation whose values the configuration's registers cannot hold."""
    registers = register_map(subject.config.register_map)
    for path, (unit, name, part, minus) in (FIELDS.get(subject.type, {}) if subject.type is not None else {}).items():
        register = registers.units.get(unit, {}).get(name)
        if register is None or part not in register.fields:
            continue
        value = _value(subject, path) - minus
        most = register.fields[part].mask
        if not 0 <= value <= most:
            yield f"{path} is {value + minus}; {unit}.{name}.{part} holds {minus} to {most + minus}"


def _value(subject: Operation, path: str) -> int:
    first, _, rest = path.partition(".")
    owner: Any = subject.surface if first.endswith("_data") else subject.op
    value = getattr(owner, first)
    return getattr(value, rest) if rest else value
