"""The package list equals the tree, and imports point to lower layers only."""

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.pages import page_module

from nvdla import limits
from tools.count_code import code_lines

ROOT = Path(__file__).resolve().parents[1]

# The layers, lowest first: a package imports from packages of lower layers only, so there is no cycle.
LAYERS = [
    ["errors"],
    ["limits", "util"],
    ["compiler.caffe", "kernels", "loadable"],
    ["emulator.memory", "loadable.descriptors"],
    ["emulator.cpu", "emulator.hardware", "tensors"],
    ["emulator.firmware", "emulator.trace"],
    ["emulator.execution", "program"],
    ["analysis", "checks.lint", "emulator.faults", "experiments.campaign"],
    ["checks.diff", "compiler.builder", "runtime"],
    ["compiler.frontend", "interop.containers", "registers"],
    ["checks.compare", "checks.layers", "compiler", "interop"],
    ["checks.doctor", "experiments.evaluation", "onnx_backend"],
    ["experiments.exploration", "experiments.vulnerability", "report"],
    ["cli"],
    ["__main__"],
]
MARKERS = {"checks", "emulator", "experiments"}
"""Packages that hold subpackages only."""
modules, edges, imports_of, package_of = (
    getattr(page_module("architecture"), name) for name in ("modules", "edges", "imports_of", "package_of")
)
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}


def test_every_package_of_the_tree_is_named_in_pyproject():
    tomllib = pytest.importorskip("tomllib") if sys.version_info >= (3, 11) else pytest.importorskip("tomli")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("nvdla/**/*.py")}
    found |= {".".join(("nvdla", *path.parent.relative_to(ROOT).parts)) for path in ROOT.glob("kernels/**/*.py")}
    found.add("nvdla.sample_files")  # the folder samples/
    assert sorted(found) == sorted(project["tool"]["setuptools"]["packages"])


def test_every_package_has_its_layer():
    assert {package_of(name) for name in modules()} - {"__init__"} - MARKERS == set(LAYER)


def test_packages_import_from_lower_layers_only():
    wrong = [
        f"{name} imports {target}"
        for name, targets in edges().items()
        for target in targets
        if package_of(name) != "__init__" and package_of(target) != package_of(name)
        if LAYER[package_of(target)] >= LAYER[package_of(name)]
    ]
    assert not wrong


def test_there_are_at_most_20_names_under_nvdla():
    """Modules and packages, with ``__init__.py``, ``__main__.py`` and the link to kernels/."""
    paths = (ROOT / "nvdla").iterdir()
    names = {path.name for path in paths if path.suffix == ".py" or path.is_dir()} - {"__pycache__"}
    assert {"__init__.py", "__main__.py", "kernels"} < names
    assert len(names) <= 20, sorted(names)


def test_only_the_command_line_imports_container_formats():
    importing = {
        package_of(name) for name, targets in edges().items() for t in targets if t.startswith("nvdla.interop.c")
    }
    assert importing <= {"interop.containers", "cli"}


def test_there_is_no_cycle_between_files():
    """A name that a package re-exports counts as an import of the file that defines it."""
    assert not _cycles(edges())


def test_there_is_no_cycle_of_types():
    """Imports below ``if TYPE_CHECKING`` count, too."""
    assert not _cycles(edges(types=True))


def test_a_cycle_is_found():
    assert _cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


def _cycles(graph):
    """Return the sets of modules that import one another."""
    reach = {name: _reached(graph, name) for name in graph}
    found = {frozenset(other for other in reach[name] if name in reach.get(other, ())) for name in graph}
    return [set(cycle) for cycle in found if len(cycle) > 1]


def _reached(graph, name):
    todo, seen = [name], set()
    while todo:
        for target in graph.get(todo.pop(), ()):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


def test_the_guard_sees_what_it_is_for(tmp_path):
    """An arrow upward by each way of importing, and one that only types need."""
    known = modules()
    for text, target in (
        ("from nvdla.cli.main import main", "nvdla.cli.main"),
        ("def later():\n    import nvdla.runtime", "nvdla.runtime"),
        ("from nvdla import Runtime", "nvdla.runtime"),
        ("from nvdla import runtime", "nvdla.runtime"),
        ("import nvdla\nnvdla.load('x')", "nvdla.cli.network"),
        ("from nvdla.compiler.builder import Network", "nvdla.compiler.builder.network"),
        ("import_module('nvdla.kernels.jit.thread_pool')", "nvdla.kernels.jit.thread_pool"),
        ("DRIVERS = {1: 'nvdla.emulator.firmware.sdp:SdpDriver'}", "nvdla.emulator.firmware.sdp"),
    ):
        (tmp_path / "x.py").write_text(text)
        assert list(imports_of(tmp_path / "x.py", known)) == [target]
    (tmp_path / "x.py").write_text("if TYPE_CHECKING:\n    from nvdla.runtime import Runtime")
    assert list(imports_of(tmp_path / "x.py", known)) == []


def test_rounding_up_is_spelt_once():
    """``-(-x // y)`` has a name, ceil_div or align; ``(x + y - 1) // y``, of compiled code, too."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules().items()}
    assert [name for name, text in texts.items() if "-(-" in text] == ["nvdla.util.rounding"]
    spelt = re.compile(r"\+ (\w+(\.\w+)* - 1|7|15|31|63)\) // ")
    assert [name for name, text in texts.items() if spelt.search(text)] == ["nvdla.kernels.integers"]


def test_facts_of_the_hardware_are_defined_once():
    """Sizes that several layers need are constants of ``nvdla.limits``: no other module repeats their values."""
    sizes = rf"^(MAX|LARGEST|MOST|_?PAGE|BASE)\w* = ({limits.MAX_CUBE_SIDE}|{limits.PAGE})\b"
    others = r"^(MAX_KERNEL|MAX_WINDOW|\w+_ALIGNMENT) = (8|32|128)\b"
    again = re.compile(f"{sizes}|{others}", re.MULTILINE)
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules().items()}
    kernels = {"nvdla.kernels.jit.thread_pool_state"}  # kernels import nothing of the project
    assert {name for name, text in texts.items() if again.search(text)} - kernels == {"nvdla.limits"}


def test_missing_features_of_a_configuration_are_reported_in_one_place():
    """By ``Configuration.refusal``; others say what a probe's register map, or the meant configuration, has not."""
    saying = re.compile(r"(config|configuration|chosen|meant)\.name\} (has no|has none|lacks|does not have)\b")
    found = {name for name, path in modules().items() if saying.search(path.read_text("utf-8"))}
    assert found == {"nvdla.emulator.hardware.support", "nvdla.program.program"}


def test_no_code_depends_on_the_name_of_a_register_map():
    """What differs between generations is a field of the configuration."""
    asking = [name for name, path in modules().items() if re.search(r"register_map [!=]=", path.read_text("utf-8"))]
    assert not asking


def test_only_the_program_package_decodes_descriptors():
    """The firmware and the CPU operations decode them from memory, too, as NVIDIA's do."""
    asking = re.compile(r"\b(DlaTask|EmuTask)\.(decode|overlay)\(|\b(decode_tasks|precisions_of)\(|import .*\bdetect\b")
    packages = {package_of(name) for name, path in modules().items() if asking.search(path.read_text("utf-8"))}
    assert packages == {"loadable.descriptors", "program", "emulator.firmware", "emulator.cpu"}


PACKAGES = sorted(
    name for name, path in modules().items() if path.name == "__init__.py" and "generated" not in path.parts
)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_states_its_public_names(package):
    """Names, or the modules through which one comes in; each is there."""
    module = importlib.import_module(package)
    for name in module.__all__:
        if not hasattr(module, name):
            importlib.import_module(f"{package}.{name}")
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    made = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    passed_on = {
        each.asname or each.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package.partition(".")[0] + ".")
        for each in node.names
        if (node.module or "").startswith(f"{package}.")
    }
    public = {name for name in made | passed_on if not name.startswith("_")}
    assert public <= set(module.__all__)


def _definitions(kind):
    """(name of module, node) of all definitions of a kind."""
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kind):
                yield name, node


def test_no_class_name_is_given_twice():
    found = [node.name for _, node in _definitions(ast.ClassDef) if not node.name.startswith("_")]
    assert [name for name, count in Counter(found).items() if count > 1] == []


def test_no_decision_depends_on_the_words_of_an_error():
    """Errors of the toolkit carry data (``place``, ``BuildError.layer``); texts of other libraries may be searched."""
    own = {node.name for name, node in _definitions(ast.ClassDef) if node.name.endswith("Error")}
    questions = {"startswith", "endswith", "find", "partition", "split", "match", "fullmatch", "search", "findall"}
    asking = set()
    for name, handler in _definitions(ast.ExceptHandler):
        caught = {node.id for node in ast.walk(handler.type or handler) if isinstance(node, ast.Name)}
        text = f"str({handler.name})"
        for node in ast.walk(handler):
            search = isinstance(node, ast.Compare) and any(isinstance(each, (ast.In, ast.NotIn)) for each in node.ops)
            search |= (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in questions
            )
            if caught & own and search and text in ast.unparse(node):
                asking.add(name)
    assert not asking
    assert "import re" not in (ROOT / "nvdla" / "errors.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", sorted(LAYER))
def test_a_package_leaves_few_types_open(package):
    """``Any`` at most eight times per 1000 lines of code."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules().items() if package_of(name) == package}
    used = sum(
        isinstance(node, ast.Name) and node.id == "Any" for text in texts.values() for node in ast.walk(ast.parse(text))
    )
    assert used <= 8 * sum(map(code_lines, texts.values())) / 1000


def _signatures(promised):
    """(name, annotations) of a promised function, or of the public functions and fields of a promised class."""
    if not isinstance(promised, type):
        yield getattr(promised, "__name__", ""), getattr(promised, "__annotations__", {})
        return
    yield (
        promised.__name__,
        {name: kind for name, kind in vars(promised).get("__annotations__", {}).items() if name[0] != "_"},
    )
    for name, each in vars(promised).items():
        function = getattr(each, "fget", None) or getattr(each, "func", None) or getattr(each, "__func__", each)
        if callable(function) and (not name.startswith("_") or name == "__init__"):
            yield f"{promised.__name__}.{name}", getattr(function, "__annotations__", {})


def test_no_public_signature_leaves_a_type_open():
    found = [
        f"{name}: {argument}: {kind}"
        for path in _promised()
        for name, annotations in _signatures(_object(path))
        for argument, kind in annotations.items()
        if re.search(r"\bAny\b", str(kind))
    ]
    assert not found


def test_functions_fit_on_a_screen():
    """At most 60 lines, with decorators, parameters and docstring."""
    long = [
        f"{name}.{node.name}: {_lines_of(node)} lines"
        for name, node in _definitions((ast.FunctionDef, ast.AsyncFunctionDef))
        if _lines_of(node) > 60
    ]
    assert not long


def _lines_of(function):
    """Count the lines from the first decorator on."""
    return function.end_lineno - min(each.lineno for each in (function, *function.decorator_list)) + 1


def test_files_are_few_and_whole():
    """Fragments are merged; the generated bindings are the only long file."""
    lengths = {name: path.read_text(encoding="utf-8").count("\n") for name, path in modules().items()}
    generated = len([*ROOT.glob("nvdla/loadable/generated/*.py")])
    assert len(lengths) + generated <= 400
    assert {name: length for name, length in lengths.items() if length > 700} == {}


def test_a_run_imports_few_modules():
    code = "import sys; from nvdla.cli.entry import main; main(); print(sum('nvdla' in name for name in sys.modules))"
    words = [sys.executable, "-c", code, "run", "--demo"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    assert int(done.stdout.split()[-1]) <= 120


def test_the_package_shows_what_it_has():
    import nvdla

    assert {"load", "Runtime", "Loadable", "NvdlaError"} <= set(dir(nvdla))
    assert "TYPE_CHECKING" not in dir(nvdla)


def test_test_modules_do_not_import_from_one_another():
    """What several need lies in tests/support."""
    wrong = []
    for path in (ROOT / "tests").glob("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in names if name.startswith("test_")]
    assert not wrong


def test_links_of_the_long_description_hold_on_a_package_index():
    """Relative links become text, or absolute ones where the project says where its files are shown."""
    import runpy

    made = runpy.run_path(str(ROOT / "setup.py"), run_name="not_main")
    text = made["long_description"]((ROOT / "README.md").read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert links and all(link.startswith("https://") for link in links)
    assert "viewer.png" not in text
    source = made["source_page"]('"Source files" = "https://example.org/nvdla/blob/main"\n')
    assert made["long_description"]("[a](docs/x.md)", source) == "[a](https://example.org/nvdla/blob/main/docs/x.md)"


def test_samples_of_every_kind_are_installed():
    """Each file of samples/ that 'nvdla samples' writes matches a pattern of pyproject.toml."""
    from fnmatch import fnmatch

    from nvdla.cli import samples

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    patterns = re.findall(r'"([^"]+)"', re.search(r'^"nvdla.sample_files" = \[(.*?)\]$', text, flags=re.M)[1])
    for name in samples.CONTENTS:
        for path in samples.files_of(name):
            assert any(fnmatch(str(path.relative_to(samples.folder())), each) for each in patterns), path


def test_the_architecture_page_names_every_package_and_no_missing_file():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("## Packages") :].split("\n## ")[0]
    packages = {package.replace(".", "/") for package in LAYER if package != "__main__"}
    assert {name for name in packages if not re.search(rf"`(nvdla/)?{name}(/|\.py)`", table)} == set()
    files = {name for name in re.findall(r"`([\w/]+\.(?:py|md|yaml))`", page) if "/" in name}
    assert {name for name in files if not (ROOT / name).exists() and not (ROOT / "nvdla" / name).exists()} == set()


def _promised():
    """Paths on the page of the Python API."""
    return re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), flags=re.M)


def _object(path):
    """Import a dotted path exactly as it is written."""
    module, _, name = path.rpartition(".")
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(path)


@pytest.mark.parametrize("path", _promised())
def test_a_promised_name_is_public_in_its_package(path):
    module, _, name = path.rpartition(".")
    assert name in importlib.import_module(module).__all__
    assert _object(path) is not None and _promised().count(path) == 1


@pytest.mark.parametrize("package", sorted({path.rpartition(".")[0] for path in _promised()}))
def test_all_public_names_of_a_promised_package_are_on_the_page(package):
    """Submodules aside; a name that several packages have is on the page once."""
    promised = [_object(path) for path in _promised()]
    public = {name: _object(f"{package}.{name}") for name in importlib.import_module(package).__all__}
    names = {name: each for name, each in public.items() if not isinstance(each, type(ast))}
    assert [name for name, each in names.items() if not any(each is other for other in promised)] == []


def _examples():
    """(where, Python code) of the samples, the pages and the notebook."""
    import json

    for path in (ROOT / "samples").glob("*.py"):
        yield path.name, path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)):
            yield f"{path.name}-{number}", re.sub(r"^(>>>|\.\.\.) ?", "", block, flags=re.M)
    for path in (*(ROOT / "docs").glob("*.ipynb"), *(ROOT / "samples" / "labs").glob("*.ipynb")):
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            if cell["cell_type"] == "code":
                yield f"{path.name}-{number}", "".join(cell["source"])


def _used(code):
    """Paths of the toolkit that code imports or names: ``nvdla.a.b`` after ``import nvdla``, too."""
    tree = ast.parse(code)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "nvdla")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nvdla":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and id(node) not in inner:
            text = ast.unparse(node)
            if re.fullmatch(r"nvdla(\.\w+)+", text):
                yield text


def test_samples_pages_and_notebooks_import_promised_names_only():
    promised = {*_promised(), "nvdla.__version__"}
    packages = {path.rsplit(".", count)[0] for path in promised for count in range(1, path.count(".") + 1)}
    allowed = promised | packages
    examples = list(_examples())
    found = [
        f"{where}: {path}"
        for where, code in examples
        for path in _used(code)
        if path not in allowed and not any(path.startswith(f"{each}.") for each in promised)
    ]
    assert not found
    assert sum(bool([*_used(code)]) for _, code in examples) > 20


def _answers():
    """(question, name, files, test) of the rows that say where a change belongs."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("## Where to change something") :].split("\n## ")[0]
    for row in re.findall(r"^\| (.+) \|$", table, flags=re.M)[1:]:
        question, name, files, test = row.split(" | ")
        yield question, name.strip("`"), re.findall(r"`([\w/]+\.\w+)`", files), test.strip("`")


def test_the_architecture_page_answers_five_questions():
    questions = [question for question, *_ in _answers()]
    for asked in ("SDP rounding rule", "ONNX operator", "lint rule", "report panel", "hardware configuration"):
        assert any(asked in question for question in questions), asked


@pytest.mark.parametrize(("question", "name", "files", "test"), list(_answers()))
def test_the_files_of_an_answer_exist_and_contain_its_name(question, name, files, test):
    assert re.search(rf"(?<!\w){re.escape(name)}\b", (ROOT / files[0]).read_text(encoding="utf-8"))
    assert all((ROOT / each).is_file() for each in files)
    assert "def test_" in (ROOT / test).read_text(encoding="utf-8")
