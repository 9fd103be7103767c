"""Some words have one meaning in this project (docs/glossary.md): names use them only in the listed packages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RUNS = {"emulator/execution", "runtime.py", "emulator/faults"}
#: word -> packages and files in which names may contain it, and foreign names that are allowed everywhere
MEANT = {
    # the memory of one image of a batch; of an element type: DLPack's word for numbers that make one element
    "lane": (
        RUNS
        | {
            "emulator/memory",
            "emulator/hardware/job.py",
            "emulator/hardware/pdp.py",
            "emulator/cpu",
            "interop/containers/tvm",
        },
        set(),
    ),
    # one job does the work of several operations; in the firmware's structures and TFLite's tables: a field
    "fused": (
        RUNS | {"kernels/fast/conv_sdp_int8.py", "cli/run.py", "compiler/frontend/tflite/generated"},
        {"fused_parent"},
    ),
    # one entry of a sequence: of a run, of a register program, of a search; of a slice: ONNX's attribute
    "step": (
        RUNS
        | {
            "emulator/firmware/scheduler.py",
            "emulator/hardware/machine.py",
            "emulator/hardware/convolution/arithmetic.py",
        }
        | {
            "emulator/trace/player.py",
            "experiments/vulnerability/table.py",
            "compiler/builder/reference.py",
            "compiler/builder/accuracy.py",
        }
        | {"analysis", "program/values.py", "report/document.py", "cli/memory.py"}
        | {"registers", "cli/program.py", "compiler/builder/search.py", "cli/compile.py"}
        | {"compiler/frontend/operators", "compiler/frontend/quantization/export.py"},
        set(),
    ),
}
FORMS = {"lane": "lanes?", "fused": "fus(e|ed|es|ing|ion)", "step": "steps?"}


def names(tree: ast.AST):
    """Names in a file: variables, attributes, arguments, functions, classes, imported names."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name"):
            if isinstance(found := getattr(node, field, None), str):
                yield from found.split(".")


def uses(word: str, source: str) -> set[str]:
    """The names in a source that have the word as one of their words."""
    form = re.compile(rf"(^|_){FORMS[word]}(_|$)")
    split = {name: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in names(ast.parse(source))}
    return {name for name, words in split.items() if form.search(words)}


@pytest.mark.parametrize("word", MEANT)
def test_a_word_is_used_only_in_its_packages(word):
    packages, foreign = MEANT[word]
    files = [*ROOT.glob("nvdla/**/*.py"), *ROOT.glob("kernels/**/*.py")]
    found, used = {}, set()
    for path in files:
        where = path.relative_to(ROOT).as_posix().removeprefix("nvdla/")
        package = {where, *(parent.as_posix() for parent in Path(where).parents)} & packages
        here = uses(word, path.read_text(encoding="utf-8")) - foreign
        used |= package if here else set()
        if here and not package and "__pycache__" not in where:
            found[where] = sorted(here)
    assert not found, f"docs/glossary.md defines {word!r}; use stride for a distance, unit for a scale"
    assert used == packages, "packages that do not use the word any more"


def test_the_guard_sees_names_of_all_kinds():
    source = "import a.lanes_of\nclass MacLane: pass\ndef f(lane, planes): return x.LANES + g(step_x=1)"
    assert uses("lane", source) == {"lanes_of", "MacLane", "lane", "LANES"}
    assert uses("step", source) == {"step_x"} and uses("fused", "refused = confuse") == set()
