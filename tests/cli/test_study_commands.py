"""``nvdla memory``, ``graph``, ``cycles`` and ``timeline`` as a user calls them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nvdla.cli.output import sized
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.hardware.configuration import configuration

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"
COMMANDS = ("memory", "graph", "cycles", "timeline")

KEYS = {
    "memory": {
        "format", "version", "loadable", "configuration", "abi", "spaces", "steps", "allocations", "buffers", "reuse",
        "overlaps", "contiguous", "usage",
    },
    "graph": {
        "format", "version", "loadable", "configuration", "abi", "inputs", "outputs", "tasks", "groups", "nodes",
        "tensors", "dependencies",
    },
    "cycles": {
        "format", "version", "loadable", "configuration", "abi", "memory", "software_cycles", "clock_mhz", "measured",
        "total_cycles", "total_ms", "runs_per_second", "macs", "mac_use", "read_bytes", "written_bytes", "busy",
        "stuck", "operations",
    },
    "timeline": {"traceEvents", "displayTimeUnit", "otherData"},
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_layer_names_are_shown_where_they_are_known(nvdla_command, lenet, command):
    code, out, _ = nvdla_command(command, lenet)
    assert code == 0
    assert "pool1" in out


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["color_digits", "color_digits_nv_full_fp16", "lenet_nv_large"])
def test_every_sample_can_be_looked_at(nvdla_command, command, name):
    code, out, err = nvdla_command(command, SAMPLES / f"{name}.loadable")
    assert (code, err) == (0, "")
    assert out


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_run_so_numba_is_not_imported(lenet, command):
    check = "import sys; from nvdla.cli.main import main; main(sys.argv[1:]); assert 'numba' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", check, command, lenet], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--config", "nv_smal"), "did you mean nv_small?"),
        (("--layers", "nothing.yaml"), "nothing.yaml"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(nvdla_command, lenet, command, words, message):
    code, out, err = nvdla_command(command, lenet, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("cut", [0, 9, 1000, -2])
def test_a_truncated_loadable_is_one_line(nvdla_command, lenet, tmp_path, command, cut):
    broken = tmp_path / "broken.loadable"
    broken.write_bytes(Path(lenet).read_bytes()[:cut])
    code, _, err = nvdla_command(command, broken)
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--latency", "-1"), "memory latency: must be 0 .. "),
        (("--bandwidth", "0"), "memory bandwidth"),
        (("--clock", "0"), "clock: must be"),
        (("--software", "-3"), "--software"),
        (("--csb-cycles", "nan"), "--csb-cycles"),
        (("--cpu-cycles", "-1"), "--cpu-cycles"),
    ],
)
def test_impossible_machines_are_refused(nvdla_command, lenet, words, message):
    for command in ("cycles", "timeline"):
        code, _, err = nvdla_command(command, lenet, *words)
        assert code == 2
        assert message in err


def test_a_base_moves_every_address(nvdla_command, lenet):
    here = json.loads(nvdla_command("memory", lenet, "--json")[1])
    there = json.loads(nvdla_command("memory", lenet, "--json", "--dram-base", "0x40000000")[1])
    moved = {a["address"] - b["address"] for a, b in zip(here["buffers"], there["buffers"], strict=True)}
    assert moved == {here["spaces"][0]["base"] - 0x40000000}
    assert there["spaces"][0]["base"] == 0x40000000


@pytest.mark.parametrize(
    ("base", "message"),
    [("0x40000001", "multiple of 4096"), ("-4096", "at least 0"), ("0xfffff000", "32 address bits")],
)
def test_a_base_that_cannot_be_is_refused(nvdla_command, lenet, base, message):
    code, _, err = nvdla_command("memory", lenet, f"--dram-base={base}")
    assert code == 2
    assert message in err


@pytest.mark.parametrize("command", ["lint", "cycles", "explain", "memory", "timeline", "graph", "layers"])
def test_every_command_refuses_what_an_engine_refuses(nvdla_command, tmp_path, command):
    """Two lines of five columns fit the sixteen channels of the MAC cell that they were compiled for, but not the eight
    of nv_small."""
    (tmp_path / "wide.yaml").write_text("base: nv_small\nname: wide\nmac_atomic_c: 16\nmac_atomic_k: 16\n")
    rng, network = np.random.default_rng(0), Network()
    pixels = network.input("data", (1, 28, 28))
    network.output(network.convolution("conv", pixels, rng.normal(size=(16, 1, 5, 5))))
    calibration = calibrate(network, rng.normal(size=(2, 1, 28, 28)))
    wide = configuration(str(tmp_path / "wide.yaml"))
    build(network, wide, calibration=calibration, input_format="image").save(tmp_path / "wide.loadable")
    code, out, err = nvdla_command(command, tmp_path / "wide.loadable", "--config", "nv_small")
    assert code == (1 if command == "lint" else 2)
    text = " ".join((out + err).split())
    assert "extended channels: must be at most 4 with a post extension of 2 lines (one MAC cell), got 5" in text


def test_files_are_written_by_ending(nvdla_command, lenet, tmp_path):
    for command, option, name in (
        ("memory", "--svg", "m.svg"),
        ("timeline", "-o", "t.svg"),
        ("graph", "-o", "g.dot"),
        ("graph", "-o", "g.json"),
        ("timeline", "-o", "t.json"),
    ):
        path = tmp_path / name
        code, out, err = nvdla_command(command, lenet, option, path)
        line = f"{path}: {sized(path.stat().st_size)}"
        assert (code, out.splitlines()[-1], err) == (0, line, "")
        code, out, err = nvdla_command(command, lenet, option, path, "--json")
        json.loads(out)
        assert (code, err) == (0, line + "\n")
    assert (tmp_path / "m.svg").read_text().startswith("<svg ")
    assert (tmp_path / "g.dot").read_text().startswith("digraph ")
    assert set(json.loads((tmp_path / "g.json").read_text())) == KEYS["graph"]
    assert set(json.loads((tmp_path / "t.json").read_text())) == KEYS["timeline"]
    code, _, err = nvdla_command("graph", lenet, "-o", tmp_path / "g.pdf")
    assert code == 2
    assert ".dot .gv .svg .json" in err


def test_operations_that_deadlock_give_exit_code_1(nvdla_command):
    path = CORPUS / "loadables" / "conv_power_conv" / "nv_small-int8-basic.nvdla"
    if not path.is_file():
        pytest.skip("the corpus of loadables (../shared/corpus) is not here")
    code, out, _ = nvdla_command("timeline", path)
    assert code == 1
    assert "deadlock" in out


@pytest.mark.slow
def test_every_loadable_of_the_corpus_can_be_looked_at(nvdla_command, as_documented):
    paths = sorted((CORPUS / "loadables").glob("*/*.nvdla")) + sorted((CORPUS / "kmd-regression").glob("*_fbuf"))
    if not paths:
        pytest.skip("the corpus of loadables (../shared/corpus) is not here")
    for path in paths:
        for command in COMMANDS:
            code, out, err = nvdla_command(command, path, "--json")
            assert code in (0, 1), (command, path, err)
            as_documented(json.loads(out))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["lenet", "color_digits_nv_full_fp16"])
def test_the_json_is_as_documented(nvdla_command, as_documented, command, name):
    document = json.loads(nvdla_command(command, SAMPLES / f"{name}.loadable", "--json")[1])
    as_documented(document)


@pytest.mark.parametrize("command", ["cycles", "timeline", "memory", "graph", "layers"])
def test_a_configuration_that_refuses_the_file_is_refused(nvdla_command, samples, command):
    """Figures of a run that cannot be are refused, as run and lint refuse it."""
    code, out, err = nvdla_command(command, samples / "lenet.loadable", "--config", "nv_large")
    assert (code, out) == (2, "")
    assert "lenet.loadable cannot run on nv_large: " in err
    assert "tensor data has atoms of 8 bytes" in err
    assert err.count("\n") == 1


def test_a_page_for_a_configuration_that_refuses_the_file_begins_with_the_reason(nvdla_command, samples, tmp_path):
    words = ["report", samples / "lenet.loadable", "--config", "nv_large", "-o", tmp_path / "page.html"]
    code, _, err = nvdla_command(*words)
    assert code == 0
    assert err.startswith(f"{samples / 'lenet.loadable'} cannot run on nv_large (")


def test_a_file_that_its_configuration_refuses_has_numbers_and_a_warning(nvdla_command, cases):
    """NVIDIA's compiler writes Rubik operations for nv_large, which has no Rubik."""
    file = next(each["file"] for each in cases if each["id"] == "deconv_k2s2/nv_large-int8-fast-math")
    code, out, err = nvdla_command("cycles", file)
    assert code == 0
    assert "RUBIK" in out
    assert "cannot run on nv_large (operation 0/8 (RUBIK)" in err
    assert err.count("\n") == 1


def test_a_board_sets_clock_memory_and_processor_and_options_count_more(nvdla_command, lenet):
    _, out, _ = nvdla_command("cycles", lenet, "--board", "zcu102-150mhz", "--json")
    found = json.loads(out)
    assert (found["clock_mhz"], found["memory"]["latency_cycles"], found["software_cycles"]) == (149.985, 50, 12000)
    _, out, _ = nvdla_command(
        "cycles", lenet, "--board", "zcu102-150mhz", "--software", "0", "--clock", "100", "--json"
    )
    fast = json.loads(out)
    assert (fast["clock_mhz"], fast["software_cycles"]) == (100, 0)
    assert fast["total_cycles"] < found["total_cycles"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "memory: latency 100 cycles, bandwidth of the bus (default; --board, --latency, --bandwidth)."),
        (
            ("--clock", "150", "--latency", "200", "--bandwidth", "2", "--shared"),
            "memory: latency 200 cycles, 2 bytes per cycle, shared.",
        ),
        (
            ("--bandwidth", "16", "--shared"),
            "memory: latency 100 cycles, 16 bytes per cycle (the memory interface of nv_small takes 8), shared.",
        ),
        (
            ("--bandwidth", "3"),  # a beat of 8 bytes takes whole cycles
            "memory: latency 100 cycles, 3 bytes per cycle (the memory interface of nv_small takes 2.66667).",
        ),
        (("--software", "300"), "memory: latency 100 cycles, bandwidth of the bus; firmware 0.3 us."),
        (
            ("--board", "zcu102-150mhz", "--latency", "400", "--bandwidth", "1"),
            "memory: latency 400 cycles, 1 byte per cycle; firmware 80 us, 50 cycles per register write "
            "(board zcu102-150mhz; latency and bandwidth overridden).",
        ),
        (
            ("--board", "zcu102-bare-100mhz", "--clock", "50", "--software", "0", "--cpu-cycles", "1"),
            "memory: latency 60 cycles, 1 byte per cycle, shared; firmware 20 cycles per register write (board "
            "zcu102-bare-100mhz; clock, time of the firmware and time of CPU operations overridden).",
        ),
    ],
)
def test_every_view_of_cycles_states_memory_firmware_and_board(words, line, nvdla_command, lenet):
    for command in ("cycles", "timeline", "explain"):
        _, out, _ = nvdla_command(command, lenet, *words)
        assert " ".join(out.split()).count(f"Note: {line}") == 1, command


def test_the_list_of_boards_has_the_values_of_each(nvdla_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    _, out, _ = nvdla_command("cycles", "--board", "list")
    text = " ".join(out.split())
    for value in ("149.985", "latency 50", "8 bytes per cycle", "80 us", "latency 60", "shared", "1 us"):
        assert value in text


def test_a_board_states_the_source_of_its_numbers(nvdla_command, lenet):
    _, out, _ = nvdla_command("cycles", lenet, "--board", "zcu102-bare-100mhz")
    assert "arXiv 2508.16095" in out
    code, _, err = nvdla_command("timeline", lenet, "--board", "zcu")
    assert code == 2
    assert "must be one of zcu102-150mhz" in err


def test_memory_names_the_kinds_of_constants_that_it_does_not_list(nvdla_command, lenet):
    _, out, _ = nvdla_command("memory", lenet)
    assert "Not listed: 10 constants (weights, operands); --buffers shows all" in out
    assert "Not listed" not in nvdla_command("memory", lenet, "--buffers")[1]
