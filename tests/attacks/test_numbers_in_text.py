"""Numbers in text are ASCII: no digits of other scripts, no underscores, not thousands of digits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvdla.emulator.faults import fault
from nvdla.emulator.trace.commands import number
from nvdla.errors import FormatError, TraceError
from nvdla.interop.containers.values import element_type, pattern_of
from nvdla.registers.logs import read_log
from nvdla.tensors.files import read_dimg
from nvdla.util import rounding

ROOT = Path(__file__).resolve().parents[2]
ARABIC, WIDE = "\u0661\u0662", "\uff11"
STRANGE = [ARABIC, WIDE, "1_0", "9" * 5000, "0x" + "f" * 5000, "\u00b2", "", "x"]


@pytest.mark.parametrize("text", STRANGE)
def test_a_number_is_ascii_and_of_limited_length(text):
    for read in (rounding.integer, lambda word: rounding.integer(word, 0), rounding.real):
        with pytest.raises(ValueError):
            read(text)


def test_numbers_are_read():
    assert [rounding.integer(text, 0) for text in ("0x10", "-5", "0b11", " 7 ")] == [16, -5, 3, 7]
    assert rounding.integer("007") == 7
    assert rounding.integer(bin((1 << 128) - 1), 0) == (1 << 128) - 1
    assert rounding.real("-1.5e3") == -1500
    assert rounding.real(f"{1e308:.1f}") == 1e308


@pytest.mark.parametrize("word", STRANGE)
def test_csb_logs_take_no_other_digits(word, tmp_path):
    for line in (f"write_reg 0x5004 {word or '-'}", f"write_reg {word or '-'} 1"):
        (tmp_path / "a.txn").write_text(f"write_reg 0x5004 0x1\n{line}\n")
        with pytest.raises(TraceError, match="must have at most 64 bits") as caught:
            read_log(tmp_path / "a.txn")
        assert len(str(caught.value)) < 200
    if word not in ("", "x") and word.isprintable():
        (tmp_path / "a.c").write_text(f"reg_write(CDMA_D_MISC_CFG_0, {word});\n")
        with pytest.raises(TraceError):
            read_log(tmp_path / "a.c")


@pytest.mark.parametrize("word", STRANGE)
def test_other_files_take_no_other_digits(word, tmp_path):
    with pytest.raises(TraceError, match="must be an unsigned number"):
        number(word, "address")
    for dtype in ("i32", "f32", "bf16", "complex<f32>"):
        with pytest.raises(FormatError):
            pattern_of(element_type(dtype), word)
    with pytest.raises(FormatError):
        fault.parse(f"weight:operation=0/0,byte={word},flip=0")
    (tmp_path / "a.dimg").write_text(f"1 2 {word or '-'}\n", encoding="utf-8")
    with pytest.raises(FormatError):
        read_dimg(tmp_path / "a.dimg")


OPTIONS = {
    "an int": ["cycles", "NET", "--latency=WORD"],
    "a float": ["cycles", "NET", "--clock=WORD"],
    "an address": ["program", "NET", "--dram-base=WORD"],
    "another address": ["memory", "NET", "--base=WORD"],
    "a list": ["explore", "NET", "--latency=WORD"],
    "a shape": ["tensor", "info", "x.bin", "--layout", "nchw", "--shape=WORD,1,1"],
    "a bit": ["faults", "NET", "DATA", "--bits=WORD"],
    "a scale": ["run", "NET", "-i", "IMAGE", "--input-scale=WORD"],
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_options_take_no_other_digits(kind, samples, nvdla_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.bin").write_bytes(bytes(64))
    for word in filter(None, STRANGE):
        files = {"NET": samples / "lenet.loadable", "DATA": samples / "digits.npz", "IMAGE": samples / "digit7.pgm"}
        code, _, error = nvdla_command(*(str(files.get(each, each)).replace("WORD", word) for each in OPTIONS[kind]))
        assert code == 2, (word, error)
        assert "internal error" not in error
        assert error.count("\n") == 1


def test_numbers_are_read_in_one_place():
    """int() of any base, and str.isdigit() and its relatives, take what numerals refuses."""
    loose = re.compile(r"\bint\([^()]*, (?:0|base)\)|\.is(?:digit|decimal|numeric)\(\)")
    known = {
        "util/rounding.py": 1,
        "interop/containers/tvm/tar.py": 1,  # of bytes, whose digits are ASCII
        "compiler/caffe/text.py": 1,  # of a token that is ASCII digits of limited length
    }
    found = {}
    for path in sorted((ROOT / "nvdla").rglob("*.py")):
        name = path.relative_to(ROOT / "nvdla").as_posix()
        hits = loose.findall(path.read_text(encoding="utf-8"))
        if "generated" not in name and not name.startswith("kernels/") and len(hits) != known.get(name, 0):
            found[name] = hits
    assert found == {}
