"""Every command that reads a file turns a bad one into one line and exit code 2, never a traceback."""

from __future__ import annotations

import argparse
import importlib
import random

import pytest
from support.attack_files import ATTACKS, FILES, good

from nvdla.cli.main import COMMANDS

#: words of each command that reads a loadable first; {file} is the bad one
LOADABLE_COMMANDS = {
    "run": ["run", "{file}", "--input", "{digit}"],
    "inspect": ["inspect", "{file}", "--all"],
    "hexdump": ["hexdump", "{file}", "task-0-op_list"],
    "extract": ["extract", "{file}", "task-0-op_list", "-o", "{out}"],
    "compare": ["compare", "{file}", "{lenet}", "--random-input"],
    "doctor": ["doctor", "{file}"],
    "lint": ["lint", "{file}"],
    "diff": ["diff", "{file}", "{lenet}"],
    "memory": ["memory", "{file}"],
    "graph": ["graph", "{file}", "-o", "{out}.dot"],
    "cycles": ["cycles", "{file}"],
    "timeline": ["timeline", "{file}", "-o", "{out}.json"],
    "report": ["report", "{file}", "-o", "{out}.html"],
    "explain": ["explain", "{file}", "--alternatives"],
    "export": ["export", "{file}", "--output", "{out}.onnx"],
}
BROKEN = [name for name, (way, *_) in ATTACKS.items() if way == "load"]


def words_of(command, file, tmp_path, samples):
    places = {"file": file, "digit": samples / "digit0.pgm", "lenet": samples / "lenet.loadable"}
    return [word.format(**places, out=tmp_path / "out") for word in LOADABLE_COMMANDS[command]]


def assert_one_line(code, error, expected=(2,)):
    assert code in expected, error
    assert "internal error" not in error
    assert "Traceback" not in error
    if code == 2:
        assert error.count("\n") == 1
        assert error.strip().isprintable()


@pytest.mark.parametrize("command", LOADABLE_COMMANDS)
def test_a_broken_loadable_is_one_line(command, nvdla_command, tmp_path, samples):
    for file in [FILES / name for name in BROKEN] + [tmp_path / "missing", tmp_path]:
        code, _, error = nvdla_command(*words_of(command, file, tmp_path, samples))
        finding = command == "lint" and file.is_file()  # it reports what is wrong with the container
        assert_one_line(code, error, expected=(1, 2) if finding else (2,))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", LOADABLE_COMMANDS)
def test_a_loadable_that_cannot_run_is_a_line_or_a_finding(command, nvdla_command, tmp_path, samples):
    """Tools that only look may find nothing wrong; those that run say why it cannot."""
    for name in [name for name, (way, *_) in ATTACKS.items() if way == "run"]:
        code, _, error = nvdla_command(*words_of(command, FILES / name, tmp_path, samples))
        assert_one_line(code, error, expected=(0, 1, 2))


@pytest.mark.parametrize("command", LOADABLE_COMMANDS)
def test_a_mutated_loadable_is_a_line_or_a_result(command, nvdla_command, tmp_path, samples):
    import fuzz_mutator

    rng, data = random.Random(command), good()
    for _ in range(25):
        mutant = fuzz_mutator.mutate_loadable(data, rng) or fuzz_mutator.mutate_bytes(data, rng)
        (tmp_path / "mutant.nvdla").write_bytes(mutant)
        code, _, error = nvdla_command(*words_of(command, tmp_path / "mutant.nvdla", tmp_path, samples))
        assert_one_line(code, error, expected=(0, 1, 2))


@pytest.mark.parametrize("name", [name for name, (way, *_) in ATTACKS.items() if way.startswith("trace")])
def test_a_bad_trace_is_one_line(name, nvdla_command):
    config = ATTACKS[name][0].partition(":")[2] or "nv_small"
    code, _, error = nvdla_command("trace", "replay", FILES / name, "--config", config)
    assert_one_line(code, error)


@pytest.mark.parametrize("name", [name for name, (way, *_) in ATTACKS.items() if way == "tensor"])
def test_a_bad_tensor_is_one_line(name, nvdla_command, samples):
    code, _, error = nvdla_command("run", samples / "lenet.loadable", "--input", FILES / name)
    assert_one_line(code, error)
    code, _, error = nvdla_command("tensor", "info", FILES / name)
    assert_one_line(code, error)


@pytest.mark.parametrize("name", [name for name, (way, *_) in ATTACKS.items() if way == "container"])
def test_a_bad_container_is_one_line(name, nvdla_command):
    code, _, error = nvdla_command("container", "list", FILES / name)
    assert_one_line(code, error)


@pytest.mark.parametrize("name", [name for name, (way, *_) in ATTACKS.items() if way == "caffe"])
def test_a_bad_caffe_network_is_one_line(name, nvdla_command, samples):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    files = [FILES / name] if name.endswith(".prototxt") else [samples / "lenet.prototxt", FILES / name]
    words = [samples / "lenet.loadable", "-i", samples / "digit3.pgm", "--caffe", *files]
    code, _, error = nvdla_command("compare", *words)
    assert_one_line(code, error)
    assert name in error


def test_a_name_that_steers_the_terminal_is_printed_as_text(nvdla_command, tmp_path, samples):
    path = tmp_path / "x\x1b[2J\n.loadable"
    code, _, error = nvdla_command("inspect", path)
    assert_one_line(code, error)
    assert "\\x1b" in error
    labels = tmp_path / "labels.txt"
    labels.write_text("\x1b[31mred\n" * 10)
    code, out, _ = nvdla_command(
        "run", samples / "lenet.loadable", "--input", samples / "digit0.pgm", "--class-names", labels
    )
    assert code == 0
    assert "\x1b" not in out


#: Words behind the network's name, for each command that prints about a network.
ABOUT_A_NETWORK = {
    "inspect": (), "doctor": (), "lint": (), "layers": (), "memory": (), "graph": (), "cycles": (), "timeline": (),
    "explain": (), "extract": ("--list",), "diff": None, "run": ("--random-input",), "compare": ("--random-input",),
    "program": ("--config", "nv_small", "-o"), "explore": ("--config", "nv_small,nv_full"), "hexdump": ("--blob", "0"),
}  # fmt: skip


@pytest.mark.parametrize("command", ABOUT_A_NETWORK)
def test_the_name_of_a_network_that_steers_the_terminal_is_printed_as_text(command, nvdla_command, tmp_path, samples):
    path = tmp_path / "x\x1b[2J\x07\r.loadable"
    path.write_bytes((samples / "lenet.loadable").read_bytes())
    words = (path,) if ABOUT_A_NETWORK[command] is None else ABOUT_A_NETWORK[command]
    words = (*words, tmp_path / "out\x1b[2J") if words[-1:] == ("-o",) else words
    for broken in (False, True):
        _, out, error = nvdla_command(command, path, *words)
        assert not {"\x1b", "\x07", "\r"} & set(out + error)
        path.write_bytes(b"no network" if not broken else b"")


def test_names_are_text_in_pages_and_pictures(nvdla_command, tmp_path, samples):
    """What is written into HTML and SVG is escaped or packed; how the page shows it is tried in a browser
    (tests/report)."""
    from support.attack_files import changed

    (tmp_path / "x.nvdla").write_bytes(changed("tensors", 0, name='"><script>alert(1)</script>'))
    for words in (
        ["report", tmp_path / "x.nvdla", "-o", tmp_path / "x.html"],
        ["memory", tmp_path / "x.nvdla", "--svg", tmp_path / "x.svg"],
    ):
        code, _, error = nvdla_command(*words)
        assert_one_line(code, error, expected=(0,))
        assert "<script>alert" not in words[-1].read_text()


@pytest.mark.parametrize("command", sorted({*LOADABLE_COMMANDS} - {"extract"}))
def test_descriptors_read_as_what_they_are_not_are_a_line_or_a_result(command, nvdla_command, tmp_path, samples):
    """The other ABI shows numbers that no compiler writes: shapes, strides and kernels of 0."""
    for config in ("auto", "nv_full"):
        words = words_of(command, samples / "lenet.loadable", tmp_path, samples)
        code, _, error = nvdla_command(*words, *(() if command == "diff" else ("--config", config)), "--abi", "old")
        assert_one_line(code, error.splitlines(True)[-1] if error else "", expected=(0, 1, 2))


#: What an option may be given; {file} is a loadable, {other} a file of another kind.
NONSENSE = [
    "-1", "0", "nan", "inf", "1e999", "9" * 5000, "", " ", "=", "--", "x=", ",", "\x1b[31m", "x" * 5000, "{file}",
    "{other}", "{folder}", "{folder}/none/x", "/dev/full",
]  # fmt: skip
#: they stay, clear what others use, compile every kernel, or begin processes for every call
NOT_TRIED = {"serve", "view", "cache", "explore"}


def options_of(parser, words=()):
    """(words of a sub-command, its option, its other arguments that must be given) of a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield from options_of(each, (*words, name))
            return
    must = [each for each in parser._actions if not each.option_strings and each.nargs not in ("?", "*")]
    for action in parser._actions:
        if action.option_strings and action.nargs != 0:
            yield words, action.option_strings[-1], len(must)


@pytest.mark.parametrize("command", sorted({*COMMANDS} - NOT_TRIED))
def test_nonsense_for_an_option_is_a_line_or_a_result(command, nvdla_command, tmp_path, samples, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    module, rng = importlib.import_module(COMMANDS[command][0]), random.Random(command)
    parser = argparse.ArgumentParser()
    module.configure(parser)
    for words, option, count in options_of(parser):
        for value in rng.sample(NONSENSE, 2):
            (tmp_path / "net.loadable").write_bytes((samples / "lenet.loadable").read_bytes())
            given = value.format(file="net.loadable", other=samples / "digit0.pgm", folder="folder")
            code, out, error = nvdla_command(command, *words, *["net.loadable"] * count, f"{option}={given}")
            assert_one_line(code, error.splitlines(True)[-1] if error else "", expected=(0, 1, 2))
            assert "\x1b" not in out + error


def test_two_dashes_are_no_value_of_an_option(nvdla_command, samples):
    """argparse by itself makes an empty list of them."""
    code, _, error = nvdla_command("cycles", samples / "lenet.loadable", "--software=--")
    assert_one_line(code, error)
    assert "'--' is not a value" in error
