"""The specification: it depends on nothing else, and every kernel is compared with it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
ENGINES = {"conv", "sdp", "sdp_lut", "pdp", "cdp", "fp16_mac", "winograd", "rubik", "softmax", "integers", "floats"}
#: kernel: the test that compares it, the part of the specification
COMPARED = {
    "cdp": ("test_cdp_kernels", "cdp"),
    "conv": ("test_conv", "conv"),
    "floats": ("test_floats", "floats"),
    "fp16_mac": ("test_fp16_mac", "fp16_mac"),
    "integers": ("test_integers", "integers"),
    "pdp": ("test_pdp_kernels", "pdp"),
    "sdp": ("test_sdp", "sdp"),
    "sdp_float": ("test_sdp_float", "sdp"),
    "sdp_lut": ("test_sdp_lut", "sdp_lut"),
    "softmax_int8": ("test_softmax_int8", "softmax"),
    "winograd": ("test_winograd", "winograd"),
    "winograd_fp16": ("test_winograd", "winograd"),
    "fast.cdp_int8": ("test_cdp_kernels", "cdp"),
    "fast.conv_int8_dot": ("test_conv_int8_dot", "conv"),
    "fast.conv_sdp_int8": ("test_conv_sdp_int8", "sdp"),
    "fast.fp16_kernels": ("test_fp16_mac", "fp16_mac"),
    "fast.fp16_pixels": ("test_fp16_mac", "fp16_mac"),
    "fast.image_int8": ("test_image_int8", "conv"),
    "fast.sdp_int8_add": ("test_sdp_int8_add", "sdp"),
}
#: no arithmetic of NVDLA: calibration statistics, threads; parts of the fast paths, which are compared as a whole
OTHERS = {"threads", "fast.fast_paths", "fast.dot_tile", "fast.dot_layout", "fast.fp16_layout"}


def imports(path: Path) -> set[str]:
    """The modules of a file, and of what it takes from tests/support."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    for name in [each for each in found if each.startswith("support.")]:
        support = ROOT / "tests" / "support" / f"{name.split('.')[1]}.py"
        found |= imports(support) if support.exists() else set()
    return found


def test_every_kernel_is_compared_with_the_specification():
    modules = {path.stem for path in KERNELS.glob("*.py")}
    modules |= {f"fast.{path.stem}" for path in (KERNELS / "fast").glob("*.py") if not path.stem.endswith("_code")}
    assert {each for each in modules if not each.endswith("__init__")} == set(COMPARED) | OTHERS


@pytest.mark.parametrize(("kernel", "where"), COMPARED.items())
def test_the_comparison_takes_both(kernel, where):
    test, part = where
    found = imports(ROOT / "tests" / "kernels" / f"{test}.py")
    assert f"nvdla.kernels.reference.{part}" in found
    kernels = {f"nvdla.kernels.{kernel}", "nvdla.emulator.cpu.softmax" if kernel == "softmax_int8" else ""}
    assert found & kernels


def test_there_is_one_file_per_engine():
    assert {path.stem for path in (KERNELS / "reference").glob("*.py")} - {"__init__"} == ENGINES


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_the_specification_is_plain_python(name):
    """It imports the standard library and itself, and begins with where its behavior comes from."""
    source = (KERNELS / "reference" / f"{name}.py").read_text(encoding="utf-8")
    own = {each for each in imports(KERNELS / "reference" / f"{name}.py") if each.startswith(("nvdla", "num"))}
    assert all(each.startswith("nvdla.kernels.reference.") for each in own)
    assert "Source: " in (ast.get_docstring(ast.parse(source)) or "")


def test_the_page_of_rules_links_every_file():
    page = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
    assert all(f"`kernels/reference/{name}.py`" in page for name in ENGINES)
