"""Tables in narrow terminals: no word is cut, and every part says which row it is about."""

from __future__ import annotations

import pytest

from nvdla.cli import output

ROWS = [
    {"task": task, "operation": number, "type": "CONV", "address": "address 3+1280", "what": "kernels " * 12, "n": 7}
    for task in range(2)
    for number in range(3)
]


@pytest.fixture
def terminal(monkeypatch):
    """``terminal(columns)``: standard output is as wide."""
    return lambda columns: monkeypatch.setattr(output, "terminal_width", lambda: columns)


@pytest.mark.parametrize("columns", [40, 60, 80, 160])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_cut(terminal, capsys, columns):
    terminal(columns)
    output.print_table("rows", ROWS)
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= columns
    assert text.count("1280") == len(ROWS)
    assert text.count("kernels") == 12 * len(ROWS)


def test_a_table_that_fits_is_one(terminal, capsys):
    terminal(80)
    output.print_table("rows", ROWS)
    assert "further" not in capsys.readouterr().out


def test_a_part_begins_with_the_columns_that_tell_the_rows_apart(terminal, capsys):
    terminal(40)
    output.print_table("rows", ROWS)
    parts = capsys.readouterr().out.split("(further columns)")
    assert len(parts) > 1
    assert all("task" in part and "operation" in part for part in parts)


def test_one_column_is_enough_where_it_tells_the_rows_apart(terminal, capsys):
    terminal(30)
    output.print_table("rows", [{"name": f"blob{n}", "kind": "weights" * 2, "size": 10**12} for n in range(3)])
    second = capsys.readouterr().out.split("(further columns)")[1]
    assert "blob0" in second and "weights" not in second
