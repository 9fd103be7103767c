"""The graph as DOT text for graphviz, and as SVG by graphviz where that is installed."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess

from nvdla.analysis.graph.document import tensor_name
from nvdla.analysis.study import Study
from nvdla.analysis.svg import FIXED_STYLE, clean, short
from nvdla.errors import FormatError, shape_text
from nvdla.program.operation import Operation
from nvdla.program.values import Value

DOT_SECONDS = 120
COLORS = {
    "conv": "#2f6fde",
    "sdp": "#1a7f64",
    "pdp": "#a15c00",
    "cdp": "#8250df",
    "bdma": "#6e7781",
    "rubik": "#bf3989",
    "cpu": "#4b5563",
}
KINDS = {"input": "#1a7f64", "output": "#2f6fde", "constant": "#8c959f", "intermediate": "#a15c00", "unset": "#cf222e"}


def dot_text(study: Study, constants: bool = False, events: bool = False) -> str:
    """The graph in DOT: a box an operation, an ellipse a tensor in memory, chains on the fly boxed together.

    ``constants`` shows weights and operands too; ``events`` the dependencies that data do not show (dashed).
    """
    tasks: dict[int, list[list[Operation]]] = {}
    for chain in study.chains:
        tasks.setdefault(chain[0].task, []).append(chain)
    lines = [
        "digraph loadable {",
        "  rankdir=TB; newrank=true;",
        f"  label={quote(study.title)}; labelloc=t; bgcolor=transparent;",
        '  graph [fontname="Helvetica"]; node [fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=8, color="#6e7781"];',
    ]
    for task, chains in tasks.items():
        kind = study.loadable.task(task).interface.name
        label = quote(f"task {task} ({kind})")
        lines.append(f"  subgraph cluster_task{_number(task)} {{ label={label}; style=rounded;")
        lines += [line for chain in chains for line in _chain(chain)]
        lines.append("  }")
    values = [value for value in study.values if constants or value.kind != "constant"]
    lines += [_tensor(study, value) for value in values]
    lines += [line for value in values for line in _flow(value)]
    lines += _on_the_fly(study)
    if events:
        lines += _events(study)
    return "\n".join([*lines, "}"]) + "\n"


def _chain(chain: list[Operation]) -> list[str]:
    boxes = [f"    {_box(node)}" for node in chain]
    if len(chain) == 1:
        return boxes
    name = _id(chain[0])
    return [f'    subgraph cluster_{name} {{ label="on the fly"; style="rounded,dashed"; fontsize=8;', *boxes, "    }"]


def _box(node: Operation) -> str:
    lines = [node.title, *_wrapped(node.what)]
    if node.output:
        lines.append(shape_text(node.output) + (f"  {node.precision}" if node.precision else ""))
    label = "\n".join(short(line, 46) for line in lines)
    color = COLORS.get(node.engine, "#6e7781")
    look = f'shape=box, style="rounded,filled", fillcolor="{color}", fontcolor=white'
    return f"{_id(node)} [{look}, label={quote(label)}];"


def _wrapped(text: str, width: int = 40) -> list[str]:
    """The description in at most three lines, cut at commas and semicolons."""
    lines: list[str] = []
    for part in re.split(r"(?<=[,;]) ", text):
        if lines and len(lines[-1]) + len(part) < width:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines if len(lines) <= 3 else [*lines[:2], lines[2] + " ..."]


def _tensor(study: Study, value: Value) -> str:
    shape = shape_text(value.shape) if value.shape else f"{value.bytes} bytes"
    label = f"{short(tensor_name(study, value), 30)}\n{shape}\nmemory {value.memory}+{value.offset}"
    color = KINDS[value.kind]
    return f'  t{value.id} [shape=ellipse, color="{color}", label={quote(label)}, height=0.3];'


def _flow(value: Value) -> list[str]:
    lines = []
    if value.writer:
        lines.append(f"  {key_id(value.writer)} -> t{value.id};")
    for key, role in dict.fromkeys(value.readers):
        label = "" if role == "src" else f" [label={quote(role)}]"
        lines.append(f"  t{value.id} -> {key_id(key)}{label};")
    return lines


def _on_the_fly(study: Study) -> list[str]:
    return [
        f'  {_id(first)} -> {_id(second)} [penwidth=2, color="#24292f"];'
        for chain in study.chains
        for first, second in itertools.pairwise(chain)
    ]


def _events(study: Study) -> list[str]:
    return [
        f"  {_id(node)} -> {key_id(each.target)} "
        f'[style=dashed, constraint=false, fontcolor="#6e7781", label={quote(each.event.removeprefix("OP_").lower())}];'
        for node in study.operations
        for each in node.dependencies
        if each.target in study.by_key and study.step_of[each.target] != study.step_of[node.key]
    ]


def _id(node: Operation) -> str:
    return key_id(node.key)


def key_id(key: tuple[int, int, int]) -> str:
    """What an operation is called in drawings."""
    return "op_" + "_".join(_number(part) for part in key)


def _number(value: int) -> str:
    """An identifier's part: task ids may be negative in a broken file."""
    return str(value) if value >= 0 else f"m{-value}"


def quote(text: str) -> str:
    """A DOT string: quotes and backslashes escaped, so that no text of a file is taken for an escape sequence."""
    escaped = clean(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", " ")
    return f'"{escaped}"'


def dot_program() -> str | None:
    """Where graphviz's ``dot`` is, None where it is not installed."""
    return shutil.which("dot")


def dot_svg(text: str) -> str:
    """The drawing of DOT text by graphviz: an <svg> element. Raises FormatError without graphviz, or when it fails."""
    program = dot_program()
    if program is None:
        raise FormatError(
            "drawing needs graphviz's 'dot', which is not installed (Debian: apt-get install graphviz); "
            "--dot writes the graph as text without it"
        )
    try:
        done = subprocess.run(
            [program, "-Tsvg"], input=text.encode(), capture_output=True, timeout=DOT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FormatError(f"graphviz did not draw the graph: {error}; --dot writes it as text") from None
    output = done.stdout.decode("utf-8", "replace")
    at = output.find("<svg")
    if done.returncode or at < 0:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise FormatError(f"graphviz did not draw the graph: {reason[0] if reason else 'no output'}")
    end = output.index(">", at) + 1
    return f"{output[at:end]}<style>{FIXED_STYLE}</style>{output[end:]}"
