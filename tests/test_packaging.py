"""What is installed is what is in the tree, and arrows between rooms point down only."""

import ast
import importlib
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.pages import page_module

ROOT = Path(__file__).resolve().parents[1]

# The storeys of the house, from the ground up: a room imports from rooms of lower storeys only, so there is no circle
# between rooms.
STOREYS = [
    ["discovery", "errors", "open_enum", "rounding"],
    ["argument_kinds", "checked", "files", "kernels", "limits", "notebook", "precision"],
    ["loadable", "plain_yaml", "threads"],
    ["descriptors", "memory", "samples"],
    ["cpu", "hardware", "tensors"],
    ["firmware", "trace"],
    ["program"],
    ["analysis", "caffe", "campaign", "execution", "lint"],
    ["builder", "faults"],
    ["diff", "runtime"],
    ["containers", "csb", "warm_up"],
    ["frontend"],
    ["compare", "onnx_backend", "recognition"],
    ["evaluation"],
    ["exploration", "vulnerability"],
    ["doctor"],
    ["report"],
    ["explorer"],
    ["cli"],
    ["__main__"],
]
modules, edges, imports_of, room_of = (
    getattr(page_module("house"), name) for name in ("modules", "edges", "imports_of", "room_of")
)
STOREY = {room: number for number, rooms in enumerate(STOREYS) for room in rooms}


def test_every_package_of_the_tree_is_named_in_pyproject():
    tomllib = pytest.importorskip("tomllib") if sys.version_info >= (3, 11) else pytest.importorskip("tomli")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("nvdla/**/*.py")}
    found |= {".".join(("nvdla", *path.parent.relative_to(ROOT).parts)) for path in ROOT.glob("kernels/**/*.py")}
    found.add("nvdla.sample_files")  # the folder samples/
    assert sorted(found) == sorted(project["tool"]["setuptools"]["packages"])


def test_every_room_has_its_storey():
    rooms = {room_of(name) for name in modules()} - {"__init__"}
    assert rooms == set(STOREY)


def test_arrows_point_down_only():
    wrong = [
        f"{name} imports {target}"
        for name, targets in edges().items()
        for target in targets
        if room_of(name) != "__init__" and room_of(target) != room_of(name)
        if STOREY[room_of(target)] >= STOREY[room_of(name)]
    ]
    assert not wrong


def test_no_circle_between_files():
    """Packages are files like others: their names count as those of the file that they come from."""
    assert not _circles(edges())


def test_a_circle_is_seen():
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


def _circles(graph):
    """Sets of modules that lead to one another."""
    reach = {name: _reached(graph, name) for name in graph}
    found = {frozenset(other for other in reach[name] if name in reach.get(other, ())) for name in graph}
    return [set(circle) for circle in found if len(circle) > 1]


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
        ("import nvdla\nnvdla.load('x')", "nvdla.loadable"),
        ("from nvdla.builder import Network", "nvdla.builder.network"),
        ("import_module('nvdla.kernels.jit.crew')", "nvdla.kernels.jit.crew"),
        ("DRIVERS = {1: 'nvdla.firmware.sdp:SdpDriver'}", "nvdla.firmware.sdp"),
    ):
        (tmp_path / "x.py").write_text(text)
        assert list(imports_of(tmp_path / "x.py", known)) == [target]
    (tmp_path / "x.py").write_text("if TYPE_CHECKING:\n    from nvdla.runtime import Runtime")
    assert list(imports_of(tmp_path / "x.py", known)) == []


def test_rounding_up_is_spelt_once():
    """``-(-x // y)`` has a name, ceil_div or align; ``(x + y - 1) // y``, of compiled code, too."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules().items()}
    assert [name for name, text in texts.items() if "-(-" in text] == ["nvdla.rounding"]
    spelt = re.compile(r"\+ (\w+(\.\w+)* - 1|7|15|31|63)\) // ")
    assert [name for name, text in texts.items() if spelt.search(text)] == ["nvdla.kernels.integers"]


def test_what_a_configuration_lacks_is_said_in_one_place():
    """By ``Configuration.refusal``; others say what a probe's register map, or the meant configuration, has not."""
    saying = re.compile(r"(config|configuration|chosen|meant)\.name\} (has no|has none|lacks|does not have)\b")
    found = {name for name, path in modules().items() if saying.search(path.read_text("utf-8"))}
    assert found == {"nvdla.hardware.support", "nvdla.program.choice"}


def test_nothing_asks_for_the_name_of_a_register_map():
    """What differs between generations is a field of the configuration."""
    asking = [name for name, path in modules().items() if re.search(r"register_map [!=]=", path.read_text("utf-8"))]
    assert not asking


def test_who_wants_to_know_what_a_loadable_says_asks_the_program():
    """Only what runs descriptors from memory (firmware, CPU tasks) decodes them beside it."""
    asking = re.compile(r"\b(DlaTask|EmuTask)\.(decode|overlay)\(|\b(decode_tasks|precisions_of)\(|import .*\bdetect\b")
    rooms = {room_of(name) for name, path in modules().items() if asking.search(path.read_text("utf-8"))}
    assert rooms == {"descriptors", "program", "firmware", "cpu"}


PACKAGES = sorted(
    name for name, path in modules().items() if path.name == "__init__.py" and "generated" not in path.parts
)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_what_of_it_is_public(package):
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
    """A name means one thing in the whole house, whichever room it is read in."""
    found = [node.name for _, node in _definitions(ast.ClassDef) if not node.name.startswith("_")]
    assert [name for name, count in Counter(found).items() if count > 1] == []


def test_functions_fit_on_a_screen():
    long = [
        f"{name}.{node.name}: {node.end_lineno - node.body[0].lineno + 1} lines"
        for name, node in _definitions(ast.FunctionDef)
        if node.end_lineno - node.body[0].lineno + 1 > 60
    ]
    assert not long


def test_the_package_shows_what_it_has():
    import nvdla

    assert {"load", "Runtime", "Loadable", "NvdlaError"} <= set(dir(nvdla))


def test_test_modules_do_not_import_from_one_another():
    """What several need lies in tests/support."""
    wrong = []
    for path in (ROOT / "tests").glob("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in names if name.startswith("test_")]
    assert not wrong


def test_the_picture_of_the_house_is_current():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert page == page_module("house").with_picture(page), "python tools/pages/house.py"


def test_the_picture_stands_on_the_ground():
    """Every arrow of the picture leads to a lower storey."""
    levels = {
        room: level
        for level, names in enumerate(page_module("house").storeys(page_module("house").rooms()))
        for room in names
    }
    arrows = re.findall(r"^  (\w+) --> (\w+)$", page_module("house").picture(), flags=re.M)
    assert len(arrows) > 40
    assert all(levels[start] > levels[end] for start, end in arrows)


def test_links_of_the_long_description_hold_on_a_package_index():
    """Relative links become text, or absolute ones where the project says where its files are shown."""
    import runpy

    made = runpy.run_path(str(ROOT / "setup.py"), run_name="not_main")
    text = made["long_description"]((ROOT / "README.md").read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert links and all(link.startswith("https://") for link in links)
    source = made["source_page"]('"Source files" = "https://example.org/nvdla/blob/main"\n')
    assert made["long_description"]("[a](docs/x.md)", source) == "[a](https://example.org/nvdla/blob/main/docs/x.md)"


def test_samples_of_every_kind_are_installed():
    """Each file of samples/ that 'nvdla samples' writes matches a pattern of pyproject.toml."""
    from fnmatch import fnmatch

    from nvdla import samples

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    patterns = re.findall(r'"([^"]+)"', re.search(r'^"nvdla.sample_files" = \[(.*?)\]$', text, flags=re.M)[1])
    for name in samples.CONTENTS:
        for path in samples.files_of(name):
            assert any(fnmatch(str(path.relative_to(samples.folder())), each) for each in patterns), path


def test_the_architecture_page_names_every_room_and_no_file_that_is_gone():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("## Rooms") :].split("\n## ")[0]
    rooms = {room for room in STOREY if room != "__main__"}
    assert {room for room in rooms if not re.search(rf"`(nvdla/)?{room}(/|\.py)`", table)} == set()
    files = {name for name in re.findall(r"`([\w/]+\.(?:py|md|yaml))`", page) if "/" in name}
    assert {name for name in files if not (ROOT / name).exists() and not (ROOT / "nvdla" / name).exists()} == set()
