"""What a user installs: a wheel that holds what it should and nothing else, and a list of what comes with it."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest

import nvdla

ROOT = Path(__file__).resolve().parents[1]


def project() -> dict:
    tomllib = pytest.importorskip("tomllib") if sys.version_info >= (3, 11) else pytest.importorskip("tomli")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> list[Path]:
    """Two folders with a wheel and a source archive each, built apart in time and place by ``python -m build``."""
    pytest.importorskip("build", reason="the extra nvdla[test] is not installed")
    folders = [tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")]
    source = ROOT  # then the first copy: a file may change between two copies
    for folder in folders:
        copy = folder / "project"
        ignore = shutil.ignore_patterns("build", "dist", "*.egg-info", ".*")
        shutil.copytree(source, copy, ignore=ignore, symlinks=True)  # also what does not belong there, such as caches
        source = copy
    for folder in folders:
        command = [sys.executable, "-m", "build", "-n", "-o", str(folder), str(folder / "project")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
    return folders


@pytest.fixture(scope="module")
def wheel(built) -> zipfile.ZipFile:
    """The wheel, which ``build`` makes of the unpacked source archive."""
    return zipfile.ZipFile(next(built[0].glob("*.whl")))


def test_building_twice_gives_equal_bytes(built):
    one, two = ({path.name: path.read_bytes() for path in folder.glob("*-*")} for folder in built)
    version = nvdla.__version__
    assert sorted(one) == [f"nvdla-{version}-py3-none-any.whl", f"nvdla-{version}.tar.gz"]
    assert one == two


def test_the_source_archive_has_code_tests_and_pages_and_no_caches(built):
    with tarfile.open(next(built[0].glob("*.tar.gz"))) as archive:
        members = archive.getmembers()
    names = {each.name.partition("/")[2] for each in members if each.isfile()}
    for folder in ("nvdla", "kernels", "samples", "tests", "docs", "tools", "benchmarks", "fbs"):
        files = {path for path in ROOT.glob(f"{folder}/**/*.*") if path.suffix in {".py", ".md", ".c", ".h", ".yaml"}}
        assert {path.relative_to(ROOT).as_posix() for path in files if "kernels" not in path.parts[:-2]} <= names
    assert {"pyproject.toml", "setup.py", "LICENSE", "README.md", "SECURITY.md", "CHANGELOG.md"} <= names
    assert not [name for name in names if re.search(r"(^|/)(__pycache__|\.git|\.ci)/|\.(pyc|nbi|nbc|kernel|so)$", name)]
    assert {(each.uid, each.gid, each.uname) for each in members} == {(0, 0, "")}


def test_an_index_takes_what_was_built(built):
    pytest.importorskip("twine", reason="the extra nvdla[test] is not installed")
    files = [str(path) for path in built[0].glob("nvdla-*")]
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_the_metadata_name_version_authors_license_and_systems(wheel):
    metadata = wheel.read(f"nvdla-{nvdla.__version__}.dist-info/METADATA").decode()
    for line in (
        f"Version: {nvdla.__version__}",
        "Author: The nvdla authors",
        "License-Expression: Apache-2.0",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Typing :: Typed",
        "Requires-Python: >=3.10",
        "Description-Content-Type: text/markdown",
    ):
        assert f"{line}\n" in metadata, line


def test_the_version_is_written_once():
    """In ``nvdla.__version__``; CITATION.cff and the recipe repeat it for readers of other tools."""
    assert "version" in project()["project"]["dynamic"] and "version" not in project()["project"]
    assert project()["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "nvdla.__version__"}
    assert f"\nversion: {nvdla.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_no_extra_repeats_the_requirements_of_another():
    extras = project()["project"]["optional-dependencies"]
    heavy = [name for each in extras.values() for name in each if name.startswith(("onnx", "iree-base-runtime"))]
    assert len(heavy) == len(set(heavy))
    assert len({tuple(sorted(each)) for each in extras.values()}) == len(extras)


@pytest.mark.slow
def test_commands_of_the_readme_work_from_the_wheel_alone(built, tmp_path):
    """In an empty environment and folder, without the checkout, after ``nvdla samples``."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    scripts, away = tmp_path / "venv" / "bin", tmp_path / "away"
    away.mkdir()
    wheel = next(built[0].glob("*.whl"))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "NVDLA"))}
    environment = {**kept, "PATH": f"{scripts}:{os.environ['PATH']}", "VIRTUAL_ENV": str(tmp_path / "venv")}
    command = [scripts / "python", "-m", "pip", "install", "-q", f"{wheel}[onnx]"]
    subprocess.run(command, env=environment, check=True, timeout=900)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", readme, flags=re.M | re.S)
    lines = ["nvdla samples -o samples", "nvdla-run samples/lenet.loadable --input samples/digit7.pgm"]
    for language, text in blocks:
        shown = [line.removeprefix("$ ") for line in text.splitlines()]
        lines += [line for line in shown if line.startswith("nvdla ")] if language in ("sh", "console") else []
    assert len(lines) >= 10
    for line in lines:
        done = subprocess.run(line, shell=True, cwd=away, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == (1 if " lint " in line else 0), f"{line}: {done.stderr}"
    assert "`nvdla view` shows the page" in readme
    words = [scripts / "nvdla", "view", "samples/lenet.loadable", "--no-browser"]
    with subprocess.Popen(words, cwd=away, env=environment, stdout=subprocess.PIPE, text=True) as viewer:
        with urllib.request.urlopen(viewer.stdout.readline().strip(), timeout=60) as page:
            assert b"<title>lenet.loadable on nv_small" in page.read()
        viewer.send_signal(signal.SIGINT)
        assert viewer.wait(60) == 0
    (code,) = (text for language, text in blocks if language == "python")
    code += f"\nassert {str(tmp_path)!r} in nvdla.__file__\n"
    subprocess.run([scripts / "python", "-c", code], cwd=away, env=environment, check=True, timeout=600)


def test_the_files_of_the_container_build_the_wheel(wheel, tmp_path):
    """The directory that the Dockerfile copies is enough: pip gets the same wheel from it."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    for words in (line.split()[1:] for line in lines if line.startswith("COPY ")):
        *sources, target = words
        place = tmp_path / target.strip("/")
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
    command = [sys.executable, "-m", "build", "-n", "-w", "-o", str(tmp_path / "out"), str(tmp_path / "src")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (made,) = (tmp_path / "out").glob("*.whl")
    assert set(zipfile.ZipFile(made).namelist()) == set(wheel.namelist())
    assert lines[-1] == 'ENTRYPOINT ["nvdla"]' and "USER user" in lines


@pytest.mark.slow
def test_the_container_is_built_and_runs():
    """As README.md shows."""
    (line,) = re.findall(r"`(docker build [^`]*)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True, timeout=60).returncode:
        pytest.skip("no server of docker runs here")
    done = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0 and "seven" in done.stdout, done.stderr


def shipped() -> set[str]:
    """Files of the tree that belong into a wheel: code, and the data that it reads."""
    data = {".yaml", ".json", ".c", ".h", ".in", ".css", ".js"}
    found = {"nvdla/py.typed"}
    for path in (*ROOT.glob("nvdla/**/*"), *ROOT.glob("kernels/**/*")):
        if path.suffix in {".py", *data} and "__pycache__" not in path.parts:
            name = path.relative_to(ROOT).as_posix()
            found.add(f"nvdla/{name}" if name.startswith("kernels/") else name)
    samples = [path.relative_to(ROOT / "samples").as_posix() for path in ROOT.glob("samples/**/*") if path.is_file()]
    return found | {f"nvdla/sample_files/{name}" for name in samples if "__pycache__" not in name}


def test_the_wheel_holds_the_tree_and_nothing_else(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == shipped()


def test_nothing_of_tests_or_caches_is_installed(wheel):
    for name in wheel.namelist():
        assert name.startswith(("nvdla/", "nvdla-")), name
        assert not re.search(r"(^|/)(tests?|__pycache__)/|\.(pyc|kernel|nbi|nbc|pth|so)$", name), name


def test_installing_executes_nothing_of_ours(wheel):
    """No build hooks, no .pth, no scripts but the two entry points; setup.py is for building alone."""
    assert not (ROOT / "setup.cfg").exists()
    assert "setup.py" not in {Path(name).name for name in wheel.namelist()}
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
    version = nvdla.__version__
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
