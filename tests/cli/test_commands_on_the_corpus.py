"""Every command that looks at a loadable, on every loadable of the corpus: an answer, never a traceback, in time."""

import json
import time

import pytest

SMALL = 1_000_000  # bytes of a loadable that must be dealt with in SECONDS
SECONDS = 2.0

WORDS = {
    "inspect": ("--all",),
    "lint": (),
    "memory": ("--svg", "memory.svg"),
    "graph": ("-o", "graph.dot"),
    "cycles": (),
    "timeline": ("-o", "trace.json"),
    "diff": (),
    "doctor": (),
    "compare": (),
    "report": ("-o", "report.html"),
}
RUNS = ("doctor", "compare", "report")
CONFIGURED = {"inspect", "diff"}


def words_of(command, case):
    """The command line for a case of the corpus, with the input and the golden hashes that belong to it."""
    words = [command, case["file"], *WORDS[command]]
    if command not in CONFIGURED:
        words += ["--config", case["config"]]
    if command == "diff":
        words.append(case["file"])
    if command in RUNS:
        folder = case["file"].parents[1]
        words += [word for each in case["inputs"] for word in ("-i", f"{each['name']}={folder / each['file']}")]
    if command == "compare":
        words += ["--golden", case["file"].parent]
    return words


def answered(code, err, case):
    """0 and 1 are answers, with one line where the configuration cannot run it; 2 is one where nothing can be run."""
    one_line = err.count("\n") == 1 and "internal error" not in err
    if code in (0, 1):
        return not err or (one_line and "cannot run on" in err)
    return one_line and (case["expect"] != "ok" or "input" in err or "compare" in err)


@pytest.mark.slow
@pytest.mark.parametrize("command", WORDS)
def test_every_command_answers_on_every_loadable_in_time(nvdla_command, cases, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    late = []
    for case in cases:
        if case["size"] >= SMALL or any(each["file"].endswith(".gz") for each in case["inputs"]):
            continue
        words = words_of(command, case)
        seconds = SECONDS
        for _ in range(3):  # the first run compiles kernels
            began = time.process_time()  # of all threads; what others do on the machine does not count
            code, _, err = nvdla_command(*words)
            seconds = time.process_time() - began
            assert answered(code, err, case), (case["id"], code, err)
            if seconds < SECONDS:
                break
        if seconds >= SECONDS:
            late.append((case["id"], seconds))
    assert not late


@pytest.mark.parametrize("command", WORDS)
def test_each_command_answers_for_each_configuration(nvdla_command, cases, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = {(case["config"], case["precision"]): case for case in cases if case["network"] == "mini_cnn"}
    assert len(chosen) >= 3
    for case in chosen.values():
        words = words_of(command, case)
        code, out, err = nvdla_command(*words)
        assert (code, err) == (0, ""), (case["id"], err)
        assert out
        document = nvdla_command(*words, "--json")[1]
        assert json.loads(document)
