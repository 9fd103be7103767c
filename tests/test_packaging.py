"""What is installed is what is in the tree, and arrows between rooms point down only."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# The storeys of the house: a module may import from its own storey's room and from rooms below.
STOREYS = {
    "errors": 0,
    "checked": 0,
    "plain_yaml": 0,
    "kernels": 0,
    "files": 0,
    "limits": 0,
    "threads": 0,
    "open_enum": 0,
    "precision": 0,
    "rounding": 0,
    "loadable": 1,
    "descriptors": 1,
    "memory": 2,
    "hardware": 3,
    "cpu": 3,
    "firmware": 4,
    "program": 5,
    "execution": 5,
    "runtime": 5,
    "tensors": 5,
    "cli": 9,
}
CAPABILITY = 6  # everything that is not named above


def modules():
    yield from (path for path in ROOT.glob("nvdla/**/*.py") if "generated" not in path.parts)
    yield from ROOT.glob("kernels/**/*.py")


def room_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[0] == "kernels" else parts[1]


def imports_of(path):
    """Rooms of nvdla that a file imports at any depth of its code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            parts = name.split(".")
            if parts[0] == "nvdla" and len(parts) > 1:
                yield parts[1]


def test_every_package_of_the_tree_is_named_in_pyproject():
    tomllib = pytest.importorskip("tomllib") if sys.version_info >= (3, 11) else pytest.importorskip("tomli")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("nvdla/**/*.py")}
    found |= {".".join(("nvdla", *path.parent.relative_to(ROOT).parts)) for path in ROOT.glob("kernels/**/*.py")}
    assert sorted(found) == sorted(project["tool"]["setuptools"]["packages"])


def test_arrows_point_down_only():
    wrong = [
        f"{path.relative_to(ROOT)} imports nvdla.{target}"
        for path in modules()
        for target in imports_of(path)
        if room_of(path) not in ("__init__", "__main__")
        and STOREYS.get(target, CAPABILITY) > STOREYS.get(room_of(path), CAPABILITY)
    ]
    assert not wrong
