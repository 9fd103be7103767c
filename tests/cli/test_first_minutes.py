"""What a new user meets first: samples, a demonstration, versions, configurations, the cache, completion, settings."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nvdla
from nvdla.cli import samples
from nvdla.cli.main import COMMANDS, main, usage
from nvdla.cli.settings import UsedSettings
from nvdla.errors import FormatError
from nvdla.kernels.fast.dot_tile import instructions
from nvdla.kernels.jit.thread_pool import threading_description

ROOT = Path(__file__).resolve().parents[2]


def document_of(nvdla_command, *words, code=0):
    found, out, _ = nvdla_command(*words, "--json")
    assert found == code
    return json.loads(out)


def test_samples_are_written_by_name(nvdla_command, tmp_path):
    code, out, _ = nvdla_command("samples", "lenet", "digit3.pgm", "-o", tmp_path / "new")
    names = {"lenet.loadable", "lenet.loadable.layers.json", "digit3.pgm"}
    assert code == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == names == {Path(each).name for each in out.split()}
    assert nvdla.load(tmp_path / "new" / "lenet.loadable").tasks


@pytest.mark.parametrize("name", samples.CONTENTS)
def test_every_sample_that_is_listed_is_there(name):
    assert samples.files_of(name)


@pytest.mark.parametrize("name", ["lenett", "../lenet.loadable", "/etc/passwd"])
def test_what_is_no_sample_is_not_copied(name, nvdla_command, tmp_path):
    code, _, error = nvdla_command("samples", name, "-o", tmp_path / "new")
    assert code == 2
    assert "unknown sample" in error
    assert not (tmp_path / "new").exists()


def test_the_demonstration_reads_a_digit(nvdla_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = nvdla_command("run", "--demo")
    assert code == 0
    assert out.startswith("nvdla run ")
    assert out.splitlines()[2].split() == ["7", "127", "seven"]
    code, _, error = nvdla_command("run")
    assert code == 2
    assert "nvdla run --demo" in error


def test_versions(nvdla_command):
    assert nvdla_command("--version")[1] == f"nvdla {nvdla.__version__}\n"
    details = nvdla_command("--version", "--verbose")[1]
    for word in ("python", "numba", "threads", "kernel cache", "compiled kernels", threading_description()[:30]):
        assert word in details
    assert instructions()[:20] in details


def test_clearing_the_cache_removes_kernels_and_nothing_else(tmp_path):
    command = "import sys; from nvdla.cli.main import main; sys.exit(main(sys.argv[1:]))"

    def cache(action):
        environment = {"NVDLA_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
        words = [sys.executable, "-c", command, "cache", action, "--json"]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True, cwd=ROOT)
        return json.loads(done.stdout)

    folder = Path(cache("info")["folder"])
    for name in ("a.1.kernel", "b.2.kernel", "notes.txt"):
        (folder / name).write_bytes(b"12345")
    assert (cache("info")["kernels"], cache("clear")["bytes"], cache("info")["kernels"]) == (2, 10, 0)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_has_every_command(shell, nvdla_command):
    pytest.importorskip("shtab", reason="the extra 'completion' is not installed")
    code, out, _ = nvdla_command("completion", shell)
    assert code == 0
    assert all(name in out for name in COMMANDS)
    if program := shutil.which(shell):
        assert subprocess.run([program, "-n"], input=out, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "line, completed",
    {
        "run digits.lo": "digits.loadable",
        "run --input dig": "digits.loadable digits.png",
        "compile digits.p": "digits.png",
        "run digits.loadable --config nv_la": "nv_large nv_large_own.yaml",
        "configs nv_la": "nv_large nv_large_own.yaml",
        "run digits.loadable --csb": "--csb-log",
    }.items(),
)
def test_bash_completes_files_and_configurations(line, completed, nvdla_command, tmp_path):
    pytest.importorskip("shtab", reason="the extra 'completion' is not installed")
    if (bash := shutil.which("bash")) is None:
        pytest.skip("bash is not installed")
    script = nvdla_command("completion", "bash")[1]
    for name in ("digits.loadable", "digits.png", "nv_large_own.yaml"):
        (tmp_path / name).touch()
    words = " ".join(["nvdla", *line.split()])
    script += f"COMP_WORDS=({words}); COMP_CWORD={len(line.split())}; _shtab_nvdla 2>/dev/null; echo ${{COMPREPLY[*]}}"
    done = subprocess.run([bash], input=script, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert sorted(done.stdout.split()) == completed.split()
    assert "complete -o bashdefault -o default -F" in script  # files where nothing else fits, as in data=FILE


@pytest.mark.parametrize(
    "name, table",
    [("nvdla.toml", ""), ("nvdla.toml", "[tool.nvdla]\n"), ("pyproject.toml", "[tool.nvdla]\n")],
)
def test_settings_of_the_folder_are_defaults(name, table, nvdla_command, lenet, tmp_path, monkeypatch):
    pytest.importorskip("tomllib")
    monkeypatch.chdir(tmp_path)
    usual = document_of(nvdla_command, "cycles", lenet)
    (tmp_path / name).write_text(f'{table}config = "nv_small"\nlatency = 900\nclock = 500\n')
    changed = document_of(nvdla_command, "cycles", lenet)
    assert (changed["clock_mhz"], usual["clock_mhz"]) == (500, 1000)
    assert changed["total_cycles"] > usual["total_cycles"]
    given = document_of(nvdla_command, "cycles", lenet, "--clock", "1000", "--latency", "100")
    assert given["total_cycles"] == usual["total_cycles"]


def test_settings_are_defaults_of_commands_with_actions_and_of_options_they_require(
    nvdla_command, samples, tmp_path, monkeypatch
):
    pytest.importorskip("tomllib")
    monkeypatch.chdir(tmp_path)
    trace = samples / "traces" / "pooling.cfg"
    assert nvdla_command("trace", "replay", trace)[0] == 2
    (tmp_path / "nvdla.toml").write_text('config = "nv_small"\n')
    code, out, error = nvdla_command("trace", "replay", trace)
    assert code == 0 and "pooling.cfg on nv_small: " in out
    assert error == "nvdla trace: settings of nvdla.toml: config = nv_small\n"
    assert nvdla_command("trace", "replay", trace, "--config", "nv_large")[0] == 1


@pytest.mark.parametrize(
    "text, said",
    [
        ("confg = 1", "unknown key 'confg'"),
        ("latency = 'x'", "latency: must be int, got 'x'"),
        ("shared = 1", "shared: must be bool, got '1'"),
        ("abi = 'older'", "must be one of auto, old, new"),
        ("mean = ['x']", "mean must be one number"),
        ("=", "must be TOML"),
        ("tool = 3", "must be a table"),
        ("[tool.nvdla]\nconfg = 1", "unknown key 'confg'"),
    ],
)
def test_settings_that_are_none_are_refused(text, said, nvdla_command, lenet, tmp_path, monkeypatch):
    pytest.importorskip("tomllib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nvdla.toml").write_text(text)
    code, _, error = nvdla_command("cycles", lenet)
    assert code == 2
    assert said in error
    assert "nvdla.toml" in error


def test_settings_of_a_file_are_reported(nvdla_command, lenet, tmp_path, monkeypatch, as_documented):
    """On standard error and in JSON: a file that came with a network may change its result."""
    pytest.importorskip("tomllib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nvdla.toml").write_text('config = "nv_small"\nlatency = 900\nmean = [1, 2, 3]\n')
    code, out, error = nvdla_command("cycles", lenet, "--json")
    assert (code, error) == (0, "nvdla cycles: settings of nvdla.toml: config = nv_small, latency = 900\n")
    document = json.loads(out)
    as_documented(document)
    assert list(document)[:3] == ["format", "version", "settings_file"]
    assert document["settings_file"] == {"file": "nvdla.toml", "values": {"config": "nv_small", "latency": 900}}
    code, out, error = nvdla_command("cycles", lenet, "--config", "nv_small", "--latency=100", "--json")
    assert (code, error) == (0, "")  # nothing of the file was used
    assert "settings_file" not in json.loads(out)
    assert nvdla_command("configs")[2] == ""


def test_a_mean_of_a_file_is_reported_by_the_run_that_it_changes(nvdla_command, samples, tmp_path, monkeypatch):
    pytest.importorskip("tomllib")
    monkeypatch.chdir(tmp_path)
    words = ["run", samples / "lenet_nv_full_fp16.loadable", "-i", samples / "digit7.pgm", "--json"]
    usual = document_of(nvdla_command, *words[:-1])
    (tmp_path / "pyproject.toml").write_text("[tool.nvdla]\nmean = 50\n")
    code, out, error = nvdla_command(*words)
    found = json.loads(out)
    assert code == 0
    assert "nvdla run: settings of pyproject.toml: mean = [50]" in error
    assert found["settings_file"] == {"file": "pyproject.toml", "values": {"mean": [50.0]}}
    assert {key: found[key] for key in usual if key != "settings_file"} != usual


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('config = "nv_large"', "config = nv_large is a setting of nvdla.toml"),
        ("latency = -5", "nvdla.toml"),
        ("threads = -5", "nvdla.toml: threads: -5: must be at least 1"),
        ('config = "mine.yaml"', "config = mine.yaml is a setting of nvdla.toml"),
    ],
)
def test_an_error_that_a_setting_causes_names_it(
    text, said, nvdla_command, lenet, tmp_path, monkeypatch, as_documented
):
    pytest.importorskip("tomllib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nvdla.toml").write_text(text)
    command = "run" if "threads" in text else "cycles"
    code, out, error = nvdla_command(command, lenet, "--json")
    assert code == 2
    assert said in error.splitlines()[-1]
    document = json.loads(out)
    as_documented(document)
    assert said in document["message"]


def test_an_error_names_the_settings_that_cause_it_and_no_others():
    """Data decides, not the words of the message: it names a latency here, but the mean causes the error."""
    settings = UsedSettings("nvdla.toml", {"latency": 60, "config": "nv_small", "mean": (1.0, 2.0)})
    error = FormatError("2 mean values, config nv_small, latency 60").about("mean")
    assert settings.explained(error).endswith("(mean = [1, 2] is a setting of nvdla.toml)")
    assert settings.explained(error.at("net.nvdla")).endswith("(mean = [1, 2] is a setting of nvdla.toml)")
    assert settings.explained(FormatError("config nv_small, latency 60")) == "config nv_small, latency 60"


def test_settings_are_what_the_options_text_would_be(nvdla_command, lenet, tmp_path, monkeypatch):
    """explore has lists of latencies and bandwidths as text."""
    pytest.importorskip("tomllib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nvdla.toml").write_text("latency = 60\nbandwidth = 2.5\n")
    points = document_of(nvdla_command, "explore", lenet, "-o", "found.json")["points"]
    assert [(each["latency"], each["bandwidth"]) for each in points] == [(60, 2.5)]
    assert json.loads((tmp_path / "found.json").read_text())["settings_file"]["file"] == "nvdla.toml"


def test_a_pipe_that_a_setting_names_is_refused_at_once(lenet, tmp_path):
    pytest.importorskip("tomllib")
    os.mkfifo(tmp_path / "x.yaml")
    (tmp_path / "nvdla.toml").write_text('config = "x.yaml"')
    words = [sys.executable, "-m", "nvdla", "cycles", str(lenet)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "nvdla.toml: config x.yaml must be a file, got a directory, pipe or device" in done.stderr


def test_a_blob_goes_to_standard_output(samples, tmp_path):
    lenet = samples / "lenet.loadable"
    blob = nvdla.load(lenet).blobs[0]
    words = [sys.executable, "-m", "nvdla", "extract", str(lenet), blob.name, "-o", "-"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, bytes(blob.data))
    assert done.stderr.decode() == f"-: {blob.length} bytes of blob {blob.name}\n"
    done = subprocess.run([*words, "--json"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"omit --json" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "-"],
        ["run", "NET", "-i", "-"],
        ["program", "NET", "-o", "-"],
        ["cycles", "-"],
        ["evaluate", "NET", "NET", "--samples", "-"],
        ["csb", "diff", "-", "NET"],
    ],
    ids=" ".join,
)
def test_a_dash_is_no_file_elsewhere(words, nvdla_command, lenet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, error = nvdla_command(*(lenet if each == "NET" else each for each in words))
    assert code == 2
    assert "is '-': must be a file or directory: give a file (./- for a file named -" in error
    assert not list(tmp_path.iterdir())


def test_a_misspelled_action_gets_a_suggestion(nvdla_command, tmp_path):
    code, _, error = nvdla_command("csb", "difff", tmp_path / "a", tmp_path / "b")
    assert code == 2
    assert "unknown action; did you mean 'diff'?" in error


def test_an_unknown_action_gets_the_command_that_decodes(nvdla_command, tmp_path):
    code, _, error = nvdla_command("csb", "decode", tmp_path / "a")
    assert code == 2
    assert f"must be diff, replay or verify, got 'decode'. To decode a log: nvdla csb {tmp_path / 'a'}" in error


def test_an_unknown_suffix_is_reported_with_the_known_ones(nvdla_command, samples, tmp_path):
    code, _, error = nvdla_command("container", "convert", samples / "weights.npz", tmp_path / "w.x")
    assert code == 2
    assert "must end in one of .gguf, .irpa, .loadable, " in error
    code, _, error = nvdla_command("container", "convert", samples / "weights.npz", tmp_path / "w.loadable")
    assert code == 2
    assert "--option template=FILE" in error


LARGE = "# nvdla\n" + "x = 1 # filler\n" * 30_000


@pytest.mark.parametrize(
    "text",
    [LARGE, "[project]\nname = 'nvdla'\n" + LARGE.replace("x =", "[tool.y]\nx =", 1), ".".join("a" * 100) + "=1#nvdla"],
)
def test_a_large_pyproject_of_others_stops_nothing(text, nvdla_command, lenet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(text)
    assert nvdla_command("inspect", lenet)[::2] == (0, "")


def test_a_large_pyproject_with_settings_is_refused(nvdla_command, lenet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(LARGE + '[tool.nvdla]\nconfig = "nv_large"\n')
    code, _, error = nvdla_command("inspect", lenet)
    assert code == 2
    assert "pyproject.toml: must be at most 262144 bytes" in error


def test_somebody_elses_pyproject_is_left_alone(nvdla_command, lenet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("nvdla = broken")
    assert nvdla_command("inspect", lenet)[0] == 0


def test_in_a_pipe_a_row_is_a_line(nvdla_command, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    lines = nvdla_command("configs")[1].splitlines()
    rows = [line.split("\t") for line in lines[1:] if line]
    assert {len(row) for row in rows} == {len(rows[0])}
    assert [row[0] for row in rows[1:]] == [
        each["name"] for each in document_of(nvdla_command, "configs")["configurations"]
    ]
    assert not any(cell != cell.strip() for row in rows for cell in row)


def test_columns_sets_the_width_of_tables(nvdla_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    assert max(map(len, nvdla_command("configs")[1].splitlines())) <= 70


def test_the_accuracy_that_explore_measures_is_shown_in_a_narrow_terminal(nvdla_command, lenet, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    data = ("--data", ROOT / "samples/digits.npz", "--limit", 3, "--workers", 1)
    code, out, err = nvdla_command("explore", lenet, *data)
    assert code == 0, err
    table, _, note = out.partition("Left out in")
    assert "top-1" in table and "top-1" not in note


@pytest.mark.parametrize("option, separator", [("--csv", ","), ("--tsv", "\t")])
def test_tables_alone_are_written_for_spreadsheets(option, separator, nvdla_command, lenet):
    code, out, _ = nvdla_command("cycles", lenet, option)
    rows = list(csv.reader(io.StringIO(out), delimiter=separator))
    assert code == 0
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) > 10


def test_severities_are_colored_only_on_a_terminal(nvdla_command, lenet, monkeypatch):
    assert "\x1b" not in nvdla_command("lint", lenet, "--config", "nv_full")[1]


def test_a_new_command_is_one_file_and_a_line(tmp_path, monkeypatch, capsys):
    """CONTRIBUTING.md: HELP, configure, run."""
    (tmp_path / "greets.py").write_text(
        'HELP = "Greet."\n'
        "def configure(parser):\n"
        '    parser.add_argument("name")\n'
        "def run(args):\n"
        '    print("hello", args.name)\n'
        "    return 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "greet", ("greets", "say hello"))
    assert main(["greet", "world"]) == 0
    assert capsys.readouterr().out == "hello world\n"
    assert "Other:\n  greet       say hello" in usage()


def test_every_command_has_a_group_in_the_help():
    assert "Other:" not in usage()


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_the_tour_of_the_readme_leaves_nothing_in_the_checkout(samples, tmp_path):
    """All shell commands of the section, one after the other, in a repository with this project's .gitignore."""
    pytest.importorskip("onnxruntime")
    root = samples.parent
    shutil.copytree(samples, tmp_path / "samples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / ".gitignore", tmp_path)
    tour = (
        (root / "README.md").read_text(encoding="utf-8").split("## Five things to do")[1].split("## Documentation")[0]
    )
    commands = re.findall(r"```sh\n(.*?)```", tour, flags=re.S) + re.findall(r"^\$ (.*)$", tour, flags=re.M)
    script = "".join(commands[:-2]).replace("nvdla ", f"{sys.executable} -m nvdla ")
    assert script.count("-m nvdla") >= 7
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    for words in (["git", "init", "-q"], ["git", "add", "-A"], ["bash", "-ec", script]):
        subprocess.run(words, cwd=tmp_path, env=environment, check=True, capture_output=True)
    left = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line for line in left.stdout.splitlines() if not line.startswith("A ")] == []


@pytest.mark.parametrize(
    "words", [["--help"], ["cycles", "--help"], ["samples/lenet.loadable"], ["cycles", "samples/lenet.loadable"]]
)
def test_a_reader_of_the_output_that_has_ended_is_no_error(words):
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([sys.executable, "-m", "nvdla", *words], stdout=writing, stderr=subprocess.PIPE, cwd=ROOT)
    os.close(writing)
    assert ended.returncode == 0 and not ended.stderr
