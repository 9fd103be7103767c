"""Options stand wherever people put them: before, between and behind the files of a command."""

from __future__ import annotations

import json
import re
import shutil
from itertools import permutations
from pathlib import Path

import pytest

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("lenet.loadable", "lenet_nv_large.loadable", "digit7.pgm"):
        shutil.copy(SAMPLES / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FILES_AND_OPTIONS = {
    "compare": (["lenet.loadable", "lenet_nv_large.loadable"], "--input digit7.pgm --csv"),
    "explain": (["lenet.loadable", "0/3"], "--config nv_small --wide"),
    "report": (["lenet.loadable", "lenet_nv_large.loadable"], "-o page.html --random-input 3"),
    "samples": (["digit", "labels"], "-o demo"),
    "container extract": (["lenet.loadable", "task0.conv0.weights"], "-o parts"),
    "diff": (["lenet.loadable", "lenet_nv_large.loadable"], "--summary --csv"),
}


@pytest.mark.parametrize("command", FILES_AND_OPTIONS)
def test_options_may_stand_anywhere_among_files(command, folder, nvdla_command):
    (first, second), options = FILES_AND_OPTIONS[command]
    said = set()
    for order in permutations([[first], [second], options.split()]):
        words = [word for part in order for word in part]
        if words.index(first) < words.index(second):
            said.add(nvdla_command(*command.split(), *words)[:2])
    assert len(said) == 1
    assert said.pop()[0] in (0, 1)


@pytest.mark.parametrize("option", ["--random-input", "--profile"])
def test_an_option_whose_number_may_be_missing_takes_no_file(option, folder, nvdla_command):
    other = [] if option == "--random-input" else ["--random-input"]
    for path in ("lenet.loadable", folder / "lenet.loadable"):
        code, out, err = nvdla_command("run", *other, option, path)
        assert (code, err) == (0, "")
        assert out.startswith("prob: ")


def test_its_number_is_still_taken(folder, nvdla_command):
    for seed in ("5", "7"):
        written = []
        for words in (["lenet.loadable", "--random-input", seed], ["--random-input", seed, "lenet.loadable"]):
            assert nvdla_command("run", *words, "-o", "prob.npy")[0] == 0
            written.append(Path("prob.npy").read_bytes())
        assert written[0] == written[1]
    code, _, err = nvdla_command("run", "--random-input", "-1", "lenet.loadable")
    assert code == 2
    assert "must be at least 0" in err


def test_several_files_after_one_input_are_several_inputs(folder, nvdla_command):
    for name in ("a.pgm", "B.PGM"):
        shutil.copy("digit7.pgm", name)
    digits = [
        nvdla_command("run", "lenet.loadable", *words.split(), "--json")[1]
        for words in (
            "-i a.pgm -i B.PGM -i a.pgm",
            "--input a.pgm B.PGM -i data=a.pgm",
            "--input=a.pgm B.PGM data=a.pgm",
        )
    ]
    found = [json.loads(text)["outputs"] for text in digits]
    assert found[0][0]["shape"] == [3, 10, 1, 1]
    assert found[0] == found[1] == found[2]
    first = nvdla_command("run", "--input", "a.pgm", "B.PGM", "lenet.loadable", "--top", "1", "--json")
    assert json.loads(first[1])["outputs"][0]["shape"] == [2, 10, 1, 1]
    error = nvdla_command("compare", "lenet.loadable", "--other-input", "a.pgm", "-i", "a.pgm", "B.PGM")[2]
    assert "--input: must be one run to compare, got 2" in error


def test_nothing_after_two_dashes_is_an_option(folder, nvdla_command):
    shutil.copy("lenet.loadable", "--wide")
    code, out, _ = nvdla_command("inspect", "--", "--wide")
    assert code == 0
    assert "nv_small" in out


@pytest.mark.parametrize(
    "words, said",
    [
        ("compare lenet.loadable a b", "unrecognized arguments: b"),
        ("compare --csv", "the following arguments are required: loadable"),
        ("container run lenet.loadable", "the following arguments are required: --function"),
        ("run lenet.loadable --fast", "unrecognized arguments: --fast (see"),
        ("run lenet.loadable --confg=nv_small", "--confg=nv_small; did you mean --config? (see"),
        ("run lenet.loadable --inp digit7.pgm", "ambiguous option: --inp"),
    ],
)
def test_wrong_words_have_the_usual_error(words, said, folder, nvdla_command):
    code, out, err = nvdla_command(*words.split())
    assert (code, out) == (2, "")
    assert said in err


def test_commands_do_not_change_their_parsed_arguments():
    """Derived values are variables or parameters: no command assigns to an attribute of ``args``."""
    for path in (Path(__file__).parents[2] / "nvdla" / "cli").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\bargs\.\w+(, args\.\w+)* [|+]?= |\b(setattr|delattr)\(args", text), path.name
