"""Shards of a campaign: each machine performs its part, and the merged files equal those of one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvdla.cli.main import main
from nvdla.errors import FormatError
from nvdla.experiments.campaign import CampaignPart

SAMPLES = Path(__file__).resolve().parents[3] / "samples"
LENET, DIGITS = str(SAMPLES / "lenet.loadable"), str(SAMPLES / "digits.npz")
COMMANDS = {
    "evaluate": ["evaluate", LENET, DIGITS, "--limit", "20"],
    "faults": ["faults", LENET, DIGITS, "--count", "7", "--limit", "2", "--where", "weight,register"],
    "explore": ["explore", LENET, "--bandwidth", "1,2,4,full", "--latency", "50,100"],
}


def perform(command: str, *words: object) -> int:
    return main([*COMMANDS[command], "--workers", "1", *map(str, words)])


def journals(command: str, folder: Path, count: int) -> list[Path]:
    paths = [folder / f"{number}.jsonl" for number in range(1, count + 1)]
    for number, path in enumerate(paths, 1):
        assert perform(command, "--shard", f"{number}/{count}", "--samples", path) == 0
    return paths


@pytest.mark.parametrize("command", COMMANDS)
def test_merged_shards_equal_one_run(command, tmp_path, capsys):
    paths = journals(command, tmp_path, 3)
    sizes = [len(path.read_text().splitlines()) - 1 for path in paths]
    assert max(sizes) - min(sizes) <= 1 and all(sizes)
    files = {}
    for name, words in (("merged", ["--merge", *reversed(paths)]), ("whole", [])):
        page, metrics, samples = (tmp_path / f"{name}.{ending}" for ending in ("html", "json", "jsonl"))
        capsys.readouterr()
        assert perform(command, "--report", page, "--output", metrics, "--samples", samples, *words) == 0
        files[name] = [each.read_bytes() for each in (page, metrics, samples)], capsys.readouterr().out
    assert files["merged"] == files["whole"]


def test_more_shards_than_tasks(tmp_path, capsys):
    paths = journals("explore", tmp_path, 10)
    assert [len(path.read_text().splitlines()) - 1 for path in paths] == [1] * 8 + [0] * 2
    repeated = [word for path in paths for word in ("--merge", path)]
    assert perform("explore", *repeated, "--json") == 0


def test_an_interrupted_shard_goes_on(tmp_path, capsys):
    first, second = journals("evaluate", tmp_path, 2)
    whole = second.read_bytes()
    second.write_bytes(whole[: len(whole) // 2])
    assert perform("evaluate", "--merge", first, second) == 2
    assert "2.jsonl: not finished, or damaged. Run its shard again with --resume." in capsys.readouterr().err
    assert perform("evaluate", "--shard", "1/2", "--samples", second, "--resume") == 2
    assert "2.jsonl: shard: must be 1/2, got 2/2" in capsys.readouterr().err
    assert perform("evaluate", "--shard", "2/2", "--samples", second, "--resume") == 0
    assert second.read_bytes() == whole


def test_shards_that_do_not_fit_together(tmp_path, capsys):
    paths = journals("evaluate", tmp_path, 3)
    merged = tmp_path / "merged.jsonl"

    def problem(*words: object) -> str:
        assert perform("evaluate", *words) == 2
        return capsys.readouterr().err

    assert "13 tasks without a record: must be one per task. Finish --shard 1/3, 3/3" in problem(
        "--merge", paths[1], "--samples", merged
    )
    assert "a record already: must be one per task" in problem("--merge", *paths, paths[0], "--samples", merged)

    assert "limit was '20', is '19'" in problem(
        "--merge", *paths, "--samples", tmp_path / "other.jsonl", "--limit", "19"
    )
    assert "--shard 1/3: journal: must be given. Add --samples" in problem("--shard", "1/3")
    assert "--shard and --merge exclude each other" in problem("--shard", "1/3", "--merge", *paths)
    assert perform("evaluate", "--merge", *paths, "--samples", merged) == 0, "a failed merge leaves nothing"


def test_a_list_of_faults_is_not_shown_as_a_digest(tmp_path, capsys):
    paths = journals("faults", tmp_path, 2)
    assert perform("faults", "--merge", *paths, "--seed", "77") == 2
    assert "belongs to another run (other faults): give another file, or repeat the options" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["4/3", "0/3", "1", "1/0", "a/b", "1/2/3", "1/9999999"])
def test_a_shard_is_checked(text, tmp_path, capsys):
    assert perform("evaluate", "--shard", text, "--samples", tmp_path / "s.jsonl") == 2
    assert "shard" in capsys.readouterr().err


def test_a_part_from_python():
    assert (str(CampaignPart(2, 3)), CampaignPart(2, 3).size(5), CampaignPart().size(5)) == ("2/3", 2, 5)
    with pytest.raises(FormatError, match="shard 0/1: must be K/N"):
        CampaignPart(0, 1)
