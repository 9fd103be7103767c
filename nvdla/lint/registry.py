"""Rules: functions with a docstring, a severity and an advice, in the order in which they are documented."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nvdla.lint.findings import Finding
from nvdla.program.operation import Operation

#: what a rule yields: evidence alone, or evidence about an operation or a task (its id)
Said = str | tuple[Operation | int, str]
Check = Callable[[Any], Iterator[Said]]

RULES: list[Rule] = []


@dataclass(frozen=True)
class Rule:
    """One rule. ``headline`` says in few words what is wrong where it finds something; ``text`` is its documentation,
    ``chapter`` the room of the documentation it stands in.

    ``of_atoms``: it says nothing useful when the loadable has atoms of another size than the configuration;
    ``of_data``: nor when a run was on random numbers.
    """

    name: str
    headline: str
    chapter: str
    severity: str
    advice: str
    text: str
    check: Check
    of_atoms: bool = False
    of_data: bool = False

    def findings(self, context: Any) -> Iterator[Finding]:
        """What the rule has to say of a context."""
        for said in self.check(context):
            where, evidence = (None, said) if isinstance(said, str) else said
            if isinstance(where, Operation):
                place: tuple[Any, ...] = (where.task, where.index, where.engine, where.layer)
            else:
                place = (where, None, None, None)
            yield Finding(self.severity, self.name, self.headline, evidence, self.advice, *place)


def rule(
    severity: str,
    advice: str,
    of_atoms: bool = False,
    of_data: bool = False,
    into: list[Rule] | None = None,
    *,
    headline: str,
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
        rules.append(Rule(name, headline, chapter, severity, advice, text, check, of_atoms, of_data))
        return check

    return register
