"""The table of operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nvdla.compiler.frontend.graph import Graph, GraphValue, Node

Function = Callable[[Graph, Node], GraphValue | list[GraphValue]]


@dataclass(frozen=True)
class Operator:
    """``function`` imports the node; ``note``: what it becomes, in a few words, for reports and the page's table."""

    name: str
    note: str
    function: Function
    family: str
    text: str


OPERATORS: dict[str, Operator] = {}


def operator(*names: str, note: str) -> Callable[[Function], Function]:
    """Register a function as the importer of these operators."""

    def add(function: Function) -> Function:
        for name in names:
            add_operator(name, note, function, function.__module__.rsplit(".", 1)[-1], function.__doc__ or "")
        return function

    return add


def add_operator(name: str, note: str, function: Any, family: str, text: str) -> None:
    """Register an operator of the importer."""
    OPERATORS[name] = Operator(name, note, function, family, text)
