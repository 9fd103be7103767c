"""What a user installs: a wheel that holds what it should and nothing else, and a list of what comes with it."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def project() -> dict:
    tomllib = pytest.importorskip("tomllib") if sys.version_info >= (3, 11) else pytest.importorskip("tomli")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """Built from a copy of the tree, as a user's pip does it."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "project"
    copy.mkdir()
    for name in ("nvdla", "kernels", "samples"):
        shutil.copytree(ROOT / name, copy / name)  # also what does not belong into a wheel, such as caches
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-cache-dir", "-w", str(folder), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(f"no wheel could be built here: {done.stderr.strip().splitlines()[-1:]}")
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def shipped() -> set[str]:
    """Files of the tree that belong into a wheel: code, and the data that it reads."""
    data = {".yaml", ".json", ".c", ".h", ".css", ".js"}
    found = {"nvdla/py.typed"}
    for path in (*ROOT.glob("nvdla/**/*"), *ROOT.glob("kernels/**/*")):
        if path.suffix in {".py", *data} and "__pycache__" not in path.parts:
            name = path.relative_to(ROOT).as_posix()
            found.add(f"nvdla/{name}" if name.startswith("kernels/") else name)
    installed = {*data, ".py", ".loadable", ".pgm", ".ppm", ".txt", ".prototxt", ".caffemodel", ".npz"}
    samples = [path for path in ROOT.glob("samples/*") if path.suffix in installed or path.name == "README.md"]
    return found | {f"nvdla/sample_files/{path.name}" for path in samples}


def test_the_wheel_holds_the_tree_and_nothing_else(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == shipped()


def test_nothing_of_tests_or_caches_is_installed(wheel):
    for name in wheel.namelist():
        assert name.startswith(("nvdla/", "nvdla-")), name
        assert not re.search(r"(^|/)(tests?|__pycache__)/|\.(pyc|kernel|nbi|nbc|pth|so)$", name), name


def test_installing_executes_nothing_of_ours(wheel):
    """No setup.py, no build hooks, no .pth, no scripts but the two entry points."""
    for name in ("setup.py", "setup.cfg", "MANIFEST.in"):
        assert not (ROOT / name).exists()
    system = project()["build-system"]
    assert (system["build-backend"], "backend-path" in system) == ("setuptools.build_meta", False)
    assert "cmdclass" not in project()["tool"]["setuptools"]
    assert not [name for name in wheel.namelist() if ".data/" in name]
    points = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert wheel.read(points).decode().split() == [
        "[console_scripts]", "nvdla", "=", "nvdla.cli.entry:main", "nvdla-run", "=", "nvdla.cli.entry:run_main"
    ]  # fmt: skip


def test_every_dependency_has_a_lowest_and_a_highest_version():
    for requirement in project()["project"]["dependencies"]:
        assert re.fullmatch(r"[a-z-]+>=[\d.]+,<[\d.]+", requirement), requirement


def test_every_import_is_declared():
    """Modules that are imported at the top of a file belong to Python, to us, or to a dependency."""
    declared = {re.split(r"[<>=]", each)[0] for each in project()["project"]["dependencies"]}
    names = {"pyyaml": "yaml", "pillow": "PIL"}
    allowed = {names.get(each, each) for each in declared} | {"llvmlite", "nvdla"} | set(sys.stdlib_module_names)
    for path in (*ROOT.glob("nvdla/**/*.py"), *ROOT.glob("kernels/**/*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                found = [node.module or ""]
            assert {each.partition(".")[0] for each in found} <= allowed, path


def test_nothing_is_unpickled_evaluated_or_loaded_unsafely():
    """The one exception are compiled kernels, whose folder only its owner can write to."""
    forbidden = {"eval", "exec", "compile", "__import__"}
    for path in (*ROOT.glob("nvdla/**/*.py"), *ROOT.glob("kernels/**/*.py")):
        if "generated" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Name):
                assert node.func.id not in forbidden, f"{path}: {node.func.id}"
            elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                call = f"{node.func.value.id}.{node.func.attr}"
                assert call not in {"os.system", "os.popen", "marshal.loads"}, f"{path}: {call}"
                assert call not in {"pickle.loads", "pickle.load"} or path.name == "kernel_cache.py", f"{path}: {call}"
                assert not call.startswith("yaml.") or call in {"yaml.parse", "yaml.safe_dump"}, f"{path}: {call}"


@pytest.fixture(scope="module")
def sbom():
    pytest.importorskip("packaging")
    location = importlib.util.spec_from_file_location("sbom", ROOT / "tools" / "sbom.py")
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


def test_the_release_notes_name_what_comes_with_us(sbom):
    notes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = project()["project"]["version"]
    release = notes.partition(f"## {version}")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", release.partition("### Bill of materials")[2], re.MULTILINE)
    assert {name for name, _ in rows} == {each["name"] for each in sbom.document()["components"]}
    requirements = project()["project"]["dependencies"]
    bounds = {re.split(r"[<>=]", each)[0]: each for each in requirements}
    from packaging.requirements import Requirement

    for name, found in rows:
        assert name not in bounds or Requirement(bounds[name]).specifier.contains(found), name


def test_the_bill_of_materials_names_everything_that_is_installed_with_us(sbom):
    bill = sbom.document()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["name"] == "nvdla"
    names = {each["name"] for each in bill["components"]}
    direct = {re.split(r"[<>=]", each)[0] for each in project()["project"]["dependencies"]}
    assert names >= direct | {"llvmlite"}
    assert names.isdisjoint({"pytest", "ruff", "nvdla"})
    for each in bill["components"]:
        assert each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}"
        assert each["licenses"]
    references = {each["bom-ref"] for each in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {each["ref"] for each in bill["dependencies"]} == references
    assert sbom.document() == bill
