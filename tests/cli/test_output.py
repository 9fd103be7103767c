"""Tables: what narrow terminals lose, what pipes get, and which rows are asked for."""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys

import pytest

from nvdla.cli import output
from nvdla.cli.compile import _print_nodes
from nvdla.cli.main import COMMANDS, parser_of
from nvdla.cli.output import sized

ROWS = [
    {"task": task, "operation": number, "type": "CONV", "address": "address 3+1280", "what": "kernels " * 12, "n": 7}
    for task in range(2)
    for number in range(3)
]


@pytest.fixture
def terminal(monkeypatch):
    """``terminal(columns)``: standard output is as wide, as COLUMNS says."""
    return lambda columns: monkeypatch.setenv("COLUMNS", str(columns))


@pytest.mark.parametrize("columns", [40, 60, 80, 160])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_cut(terminal, capsys, columns):
    terminal(columns)
    output.print_table("rows", ROWS)
    text = capsys.readouterr().out
    table, _, note = text.partition("Left out in")
    assert max(len(line) for line in table.splitlines()) <= columns
    assert table.count("1280") in (0, len(ROWS)) and table.count("kernels") in (0, 12 * len(ROWS))
    assert ("kernels" in table) == ("what" not in note)


@pytest.mark.parametrize("columns", [72, 80, 100])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_no_wider_than_the_terminal_and_loses_no_word(terminal, name, columns):
    terminal(columns)
    parser = parser_of(name)
    lines = parser.format_help().splitlines()
    assert all(len(line) <= columns or len(line.split()) <= 2 for line in lines)
    description = parser.description.split()
    assert "".join(description) in "".join("".join(lines).split())


def test_help_imports_neither_numpy_nor_a_client_of_http():
    words = "import sys; from nvdla.cli.main import main; main(['--help']); print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "numba", "http.client", "nvdla.program", "nvdla.loadable"} & set(printed.split())


def test_nothing_of_a_column_that_is_shown_is_lost(terminal, capsys):
    """Tables of random words, in terminals of all widths: every cell is there, or its column is said to be left out."""
    chance = random.Random(0)
    for columns in range(16, 140, 3):
        rows = [{f"c{at}": " ".join(word(chance, at) for _ in range(chance.randint(1, 6))) for at in range(5)}]
        terminal(columns)
        output.print_table("rows", rows)
        table, _, note = capsys.readouterr().out.partition("Left out in")
        assert max(len(line) for line in table.splitlines()) <= columns
        shown = [key for key in rows[0] if not re.search(rf"\b{key}\b", note)]
        letters = "".join(table.split())
        for at, key in enumerate(rows[0]):
            wanted = len("".join(rows[0][key].split())) if key in shown else 0
            assert letters.count("VWXYZ"[at]) == wanted, (columns, key)


def word(chance, column):
    """A word of a column, of a letter that no other column has."""
    return "VWXYZ"[column] * chance.randint(1, 14)


def test_an_interval_wraps_after_the_words_of_a_heading(terminal, capsys):
    terminal(34)
    output.print_table("rows", [{"share": "0.00% (0.00 .. 11.35)", "wrong top-1": 3}])
    assert "0.00% (0.00 .. 11.35)" in capsys.readouterr().out


def test_lines_of_a_wide_table_end_with_their_last_cell(terminal, capsys):
    """Spaces beyond the terminal would become empty lines."""
    terminal(20)
    rows = [{"name": f"row {number}", "source": "word " * number} for number in range(1, 9)]
    with output.tables_as(argparse.Namespace(csv=False, tsv=False, wide=True)):
        output.print_table("rows", rows)
    assert not any(line.endswith(" ") for line in capsys.readouterr().out.splitlines())


def test_a_table_that_fits_is_whole(terminal, capsys):
    terminal(80)
    output.print_table("rows", ROWS)
    assert "Left out" not in capsys.readouterr().out


def test_the_last_columns_are_omitted_first_with_a_note(terminal, capsys):
    terminal(40)
    output.print_table("rows", ROWS)
    text = capsys.readouterr().out
    assert "Left out in 40 columns: address, what, n; --wide shows them." in " ".join(text.split())
    assert "CONV" in text


def test_columns_of_least_importance_go_before_the_last(terminal, capsys):
    terminal(40)
    output.print_table(
        "rows", [{"name": f"blob{n}", "kind": "w" * 20, "size": 10**12} for n in range(3)], least=("kind",)
    )
    text = capsys.readouterr().out
    assert "Left out in 40 columns: kind; --wide shows them." in " ".join(text.split())
    assert text.count("1,000,000,000,000") == 3


def test_the_columns_that_identify_the_rows_stay(terminal, capsys):
    terminal(24)
    output.print_table("rows", ROWS, least=("task", "operation"))
    head = capsys.readouterr().out.splitlines()[2]
    assert head.split() == ["task", "operation"]


def test_wide_shows_all_columns_in_any_terminal(terminal, capsys):
    terminal(30)
    with output.tables_as(argparse.Namespace(wide=True)):
        output.print_table("rows", ROWS)
    text = capsys.readouterr().out
    assert "Left out" not in text
    assert sum("kernels kernels kernels" in line for line in text.splitlines()) == len(ROWS)


def test_in_a_pipe_a_row_is_a_line_of_tabs(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    output.print_table("rows", [{"name": "a" * 300, "bytes": 1234567}])
    assert capsys.readouterr().out == f"rows\nname\tbytes\n{'a' * 300}\t1234567\n\n"


def test_large_numbers_have_separators_on_terminals_alone(terminal, capsys):
    terminal(80)
    output.print_table("rows", [{"bytes": 1234567, "small": 123}])
    text = capsys.readouterr().out
    assert "1,234,567" in text and text.split()[-1] == "123"


def test_the_reason_of_a_node_stays_in_a_narrow_terminal(terminal, capsys):
    terminal(100)
    name, reason = "scope/" * 12 + "Conv", "it needs a transpose (12x11x17 to 12x17x11), which NVDLA cannot do"
    row = {"name": name, "op": "AveragePool", "placement": "host", "operations": [name], "reason": reason}
    _print_nodes({"model": "m", "config": "nv_small", "precision": "int8", "nodes": [row]})
    table, _, note = capsys.readouterr().out.partition("Left out in")
    assert "transpose" in table and "operations" in note


def test_sizes_are_printed_in_bytes_and_binary_units():
    assert [sized(n) for n in (5, 2048, 58064, 3 << 20, 5 << 30)] == [
        "5 bytes",
        "2,048 bytes (2.0 KiB)",
        "58,064 bytes (56.7 KiB)",
        "3,145,728 bytes (3.0 MiB)",
        "5,368,709,120 bytes (5.0 GiB)",
    ]


# ---- rows


def document(nvdla_command, *words):
    return json.loads(nvdla_command(*words, "--json")[1])


@pytest.mark.parametrize("command", ["cycles", "inspect", "layers"])
def test_rows_of_one_engine(nvdla_command, lenet, command):
    found = document(nvdla_command, command, lenet, "--type", "pdp")
    rows = found["ops"] if command == "inspect" else found["operations"]
    assert [str(row["operation"]).rpartition("/")[2] for row in rows] == ["2", "5"]


def test_rows_of_one_operation_by_number_and_by_layer(nvdla_command, lenet):
    for words in (["--op", "0/3", "--op", "0/4"], ["--op", "conv2"], ["--op", "conv2+relu2"]):
        rows = document(nvdla_command, "cycles", lenet, *words)["operations"]
        assert [row["operation"] for row in rows] == ["0/3", "0/4"]


def test_the_greatest_rows_come_first_and_totals_stay(nvdla_command, lenet):
    found = document(nvdla_command, "cycles", lenet, "--sort", "macs", "--top", "3")
    everything = document(nvdla_command, "cycles", lenet)
    macs = sorted((row["macs"] for row in everything["operations"]), reverse=True)
    assert [row["macs"] for row in found["operations"]] == macs[:3]
    assert found["total_cycles"] == everything["total_cycles"]


@pytest.mark.parametrize("column", ["cycles", "share"])
def test_the_longest_operations_come_first(nvdla_command, lenet, column):
    """Those that work on the fly behind one take no time of their own, and do not stand before others that do."""
    rows = document(nvdla_command, "cycles", lenet, "--sort", column, "--top", "3")["operations"]
    assert [row["operation"] for row in rows] == ["0/0", "0/6", "0/3"]


@pytest.mark.parametrize(
    ("command", "columns"),
    [
        ("cycles", ["operation", "engine", "layer", "input", "macs", "cycles", "share", "bound", "MAC use", "read"]),
        ("timeline", ["operation", "engine", "group", "enabled", "start", "end", "cycles"]),
        ("memory", ["buffer", "name", "kind", "address", "size", "shape", "written", "last read"]),
        ("layers", ["operation", "engine", "layer", "what"]),
    ],
)
def test_every_heading_sorts(nvdla_command, lenet, command, columns):
    for column in columns:
        code, _, err = nvdla_command(command, lenet, "--sort", column)
        assert code in (0, 1) and not err, (column, err)


def test_buffers_by_size_and_by_operation(nvdla_command, lenet):
    rows = document(nvdla_command, "memory", lenet, "--sort", "size", "--top", "2")["buffers"]
    assert rows[0]["size"] >= rows[1]["size"]
    rows = document(nvdla_command, "memory", lenet, "--op", "0/2")["buffers"]
    assert rows and all("0/2" in (row["written_by"], *row["read_by"]) for row in rows)


def test_the_first_rows_are_those_of_every_table(nvdla_command, lenet):
    found = document(nvdla_command, "memory", lenet, "--buffers", "--top", "2")
    assert [len(found[name]) for name in ("allocations", "buffers", "reuse")] == [2, 2, 2]
    found = document(nvdla_command, "inspect", lenet, "--all", "--top", "2")
    assert {name: len(rows) for name, rows in found.items() if isinstance(rows, list) and len(rows) > 2} == {}
    assert len(found["ops"]) == len(found["graph"]) == len(found["blobs"]) == 2


def test_findings_and_tensors_of_one_operation(nvdla_command, lenet, digit):
    found = document(nvdla_command, "lint", lenet, "--config", "nv_full", "--op", "0/3")
    assert all((each["task"], each["operation"]) == (0, 3) for each in found["findings"])
    assert found["counts"]["error"] > len(found["findings"])
    printed = nvdla_command("lint", lenet, "--config", "nv_full", "--op", "0/3")[1]
    every = sum(found["counts"].values())
    assert f"; {len(found['findings'])} of {every} findings shown (--op, --type, --top)." in printed
    assert "shown" not in nvdla_command("lint", lenet, "--config", "nv_full")[1]
    found = document(nvdla_command, "doctor", lenet, "-i", digit, "--op", "pool1")
    assert [each["operation"] for each in found["tensors"]] == [2]
    found = document(nvdla_command, "compare", lenet, lenet, "-i", digit, "--type", "PDP")
    assert {each["engine"] for each in found["tensors"]} == {"pdp"} and found["compared"] > 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--op", "0/99"), "no row has it. Operations are 0/0 to 1/0"),
        (("--type", "NPU"), "'NPU' must be an engine: BDMA, CONV"),
        (("--sort", "beauty"), "unknown column: must be one of operation"),
        (("--top", "0"), "argument --top: 0: must be at least 1"),
    ],
)
def test_rows_that_do_not_exist_are_refused(nvdla_command, lenet, words, said):
    code, _, err = nvdla_command("cycles", lenet, *words)
    assert code == 2 and said in err


def test_in_a_pipe_names_and_values_are_lines_of_tabs(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    output.print_pairs("totals", {"nodes on the host": 3, "why": "x" * 400})
    assert capsys.readouterr().out == "totals\nnodes on the host\t3\nwhy\t" + "x" * 400 + "\n\n"


def columns_of(capsys, rows):
    """The lines of a table's body, as printed on a wide terminal."""
    output.print_table("rows", rows)
    return capsys.readouterr().out.splitlines()[4:-1]


@pytest.mark.parametrize(
    "values",
    [
        ["8.6%", "100.0%", None],
        ["98.33 ± 0.68%", "100.00 ± 0.00%", "-"],
        ["0.33% (0.06 .. 1.86)", "12.00% (1.00 .. 20.39)"],
        ["38.4 dB", "7.0 dB"],
        ["1.5 KiB", "112.0 KiB"],
        ["0.5", 12],
        [3, 40_000],
        ["1,024", "12"],
    ],
)
def test_numbers_stand_right_with_their_units(values, terminal, capsys):
    terminal(120)
    shown = columns_of(capsys, [{"name": "n", "value": value, "end": "e"} for value in values])
    ends = {line.index("   e") for line in shown}
    assert len(ends) == 1
    assert all(line[: ends.copy().pop()].endswith(word) for line, word in zip(shown, texts_of(values), strict=True))


def texts_of(values):
    return ["" if value is None else f"{value:,}" if isinstance(value, int) else value for value in values]


@pytest.mark.parametrize("values", [["1", "10", "100"], ["0/4", "0/11"], ["v1", "2%"], [True, False], ["6x1x5x5", "6"]])
def test_names_and_words_stand_left(values, terminal, capsys):
    terminal(120)
    shown = columns_of(capsys, [{"value": value, "end": "e"} for value in values])
    assert not any(line.startswith("  ") for line in shown)


def test_shapes_and_sizes_have_one_form(terminal, capsys):
    terminal(120)
    output.print_table("t", [{"shape": [6, 1, 5, 5], "n": 1}, {"shape": [], "n": 2}])
    output.print_pairs("p", {"shape": (1, 20, 3, 4), "bytes": 6272, "blob_bytes": 12, "runs": 1234, "mean": 1234.5})
    out = capsys.readouterr().out
    assert "6x1x5x5" in out and "scalar" in out and "1x20x3x4" in out
    assert "6,272 (6.1 KiB)" in out and re.search(r"blob bytes +12 *\n", out)
    assert "1,234" in out and "1,234.5" in out
    assert sized(6272) == "6,272 bytes (6.1 KiB)"


def test_what_is_not_known_of_a_tensor_is_not_listed(terminal, capsys):
    terminal(120)
    output.print_table("t", [{"metadata": {"kind": "bias", "shared_with": [], "comment": None, "zero": 0}}])
    assert "kind=bias, zero=0" in capsys.readouterr().out


def test_omitted_columns_are_listed_within_the_width_of_the_terminal(terminal, capsys):
    terminal(40)
    output.print_table("rows", [{f"column {at}": "word " * 3 for at in range(12)}])
    out = capsys.readouterr().out
    assert "--wide shows them." in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 40


def test_the_doctor_keeps_what_it_is_about_on_a_narrow_terminal(terminal, nvdla_command, lenet, digit):
    terminal(60)
    _, out, _ = nvdla_command("doctor", lenet, "-i", digit)
    assert {"zero", "at ends", "dead"} <= {word.strip() for word in out.splitlines()[2].split("  ")}


@pytest.mark.parametrize(
    ("words", "columns", "answer"),
    [
        ("cycles lenet.loadable", 40, "cycles"),
        ("timeline lenet.loadable", 40, "start end"),
        ("inspect --ops lenet.loadable", 60, "what"),
        ("inspect --ops lenet.loadable", 40, "what"),
        ("inspect --ops lenet.loadable", 80, "what layer"),
        ("cycles lenet.loadable", 80, "cycles share bound layer"),
        ("cycles lenet.loadable --by layer", 40, "cycles layer"),
        ("compare lenet.loadable lenet_nv_large.loadable -i digit7.pgm", 80, "result layer"),
        ("compare lenet.loadable --caffe lenet.prototxt lenet.caffemodel -i digit7.pgm", 40, "result"),
        ("memory lenet.loadable", 60, "peak_live"),
        ("compare lenet.loadable lenet_nv_large.loadable -i digit7.pgm", 40, "result"),
        ("layers lenet.loadable", 40, "layer"),
        ("doctor lenet.loadable -i digit7.pgm", 60, "at_ends"),
    ],
)
def test_a_narrow_terminal_shows_the_column_that_answers(
    words, columns, answer, terminal, nvdla_command, samples, monkeypatch
):
    terminal(columns)
    monkeypatch.setattr(output, "for_people", lambda: True)
    monkeypatch.chdir(samples)
    _, out, _ = nvdla_command(*words.split())
    headings = {
        word for line in out.splitlines() if line.startswith(" ") for word in line.replace(" ", "_").split("___")
    }
    shown = {heading.strip("_") for heading in headings}
    assert set(answer.split()) <= shown
    assert max(len(line) for line in out.splitlines() if line.startswith(" ")) <= columns
