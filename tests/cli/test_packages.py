"""Every command on a package: accelerator parts with all detail, host parts as rows, totals; or the reason why not."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import nvdla
from nvdla.cli import packages, view
from nvdla.cli.main import COMMANDS
from nvdla.compiler.builder import quantize
from nvdla.experiments.evaluation.networks import open_network
from nvdla.tensors.images import PixelConversion
from nvdla.util.recognition import kind_of
from tests.support.packages import write_package

TOTALS = "accelerator {} 3 parts, 2 host nodes not timed (19% of multiplications), 4 transfers, 4.0 KiB in total"
PER_PART = {
    "inspect": ["--all"],
    "layers": [],
    "cycles": [],
    "timeline": ["-o", "out.json"],
    "memory": ["--svg", "out.svg"],
    "graph": ["-o", "out.dot"],
    "explain": ["--svg", "out.svg"],
    "lint": [],
    "doctor": ["-i", "x.npy"],
    "compare": ["--onnx", "host.onnx", "-i", "x.npy"],
    "export": ["--output", "out.onnx"],
    "program": ["-i", "x.npy", "-o", "out"],
}
REFUSED = {"hexdump": ["task-0-op_list"], "extract": ["task-0-op_list", "-o", "b"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    write_package(folder)
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A working directory with net.nvpkg, host.onnx and x.npy."""
    for path in made.iterdir():
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_that_takes_a_loadable_is_here():
    assert set(PER_PART) == set(packages.WRITES)
    assert {"run", "evaluate", "faults", "explore", "report", "view"} <= packages.OPENS <= set(COMMANDS)


@pytest.mark.parametrize("command", PER_PART)
def test_the_command_shows_every_part(command, folder, nvdla_command):
    code, out, err = nvdla_command(command, "net.nvpkg", *PER_PART[command])
    assert code == 0, err
    text = " ".join(out.split())
    timed = "4,122 cycles in" if command == "cycles" else "in"
    assert f"net.nvpkg: {TOTALS.format(timed)}" in text
    assert text.count("both matrices are computed; CONV multiplies with constant weights") == 2
    options = packages.WRITES[command]
    written = sorted(path.name for path in folder.glob("out*.part*"))
    assert len(written) == 3 * bool(options), written
    if command not in ("explain", "memory", "timeline", "graph", "export", "program"):
        assert [f"net.nvpkg/part{number}.loadable" in text for number in range(5)] == [True, False, True, False, True]


def test_explain_names_the_part_of_each_operation(folder, nvdla_command):
    """Operations of every part begin with 0/0."""
    code, out, _ = nvdla_command("explain", "net.nvpkg", "0/0")
    assert code == 0 and [line for line in out.splitlines() if line.startswith("net.nvpkg/part")] == [
        f"net.nvpkg/part{number}.loadable on nv_small" for number in (0, 2, 4)
    ]


@pytest.mark.parametrize("command", PER_PART)
def test_the_document_has_every_part(command, folder, nvdla_command, as_documented):
    code, out, err = nvdla_command(command, "net.nvpkg", *PER_PART[command], "--json")
    assert code == 0, err
    document = json.loads(out)
    as_documented(document)
    assert [each["kind"] for each in document["parts"]] == ["accelerator", "host"] * 2 + ["accelerator"]
    assert document["command"] == command and document["totals"]["transferred_bytes"] == 4096
    for each in document["parts"][::2]:
        if each["document"].get("format") not in (None, "nvdla-trace", "nvdla-export"):
            as_documented(each["document"])


@pytest.mark.parametrize("command", REFUSED)
def test_commands_without_packages_give_the_reason_and_the_loadables(command, folder, nvdla_command):
    code, out, err = nvdla_command(command, "net.nvpkg", *REFUSED[command])
    assert (code, out) == (2, "")
    assert "net.nvpkg: must be a loadable, got a package: " in err and "net.nvpkg/part4.loadable" in err


def test_an_exploration_adds_the_parts(folder, nvdla_command):
    """Cycles and traffic are those of all accelerator parts, and the host's share is stated."""
    words = ["net.nvpkg", "--bandwidth", "1,full", "--json"]
    code, out, err = nvdla_command("explore", *words)
    assert code == 0, err
    narrow, full = json.loads(out)["points"]
    cycles = [json.loads(nvdla_command("cycles", f"net.nvpkg/part{n}.loadable", "--json")[1]) for n in (0, 2, 4)]
    assert full["cycles"] == sum(each["total_cycles"] for each in cycles) < narrow["cycles"]
    assert full["host_nodes"] == 2 and full["frames_per_second"] is None
    assert full["host_macs_percent"] == pytest.approx(19, abs=0.5)


def test_an_exploration_says_all_that_it_takes(folder, nvdla_command):
    Path("net.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    code, _, err = nvdla_command("explore", "net.h5")
    assert (
        code == 2 and "net.h5: must be a model (.onnx, .tflite, .prototxt), a loadable or a package, got a Keras" in err
    )


def test_a_second_file_that_is_a_package_is_named(folder, nvdla_command):
    code, _, err = nvdla_command("diff", "net.nvpkg/part0.loadable", "net.nvpkg")
    assert code == 2 and "got a package of nvdla compile" in err and "net.nvpkg/part0.loadable" in err


def test_the_manifest_of_a_package_is_recognized(folder):
    with zipfile.ZipFile("net.nvpkg") as archive:
        manifest = archive.read("manifest.json")
    assert kind_of(manifest) == "manifest"


def test_the_path_of_a_part_is_that_of_a_loadable(folder, nvdla_command):
    """Commands for files of any kind read the loadable, and those for other files name its kind."""
    part = "net.nvpkg/part0.loadable"
    assert part in nvdla_command("container", "list", "net.nvpkg")[2]
    for words in ([part], ["container", "list", part], ["container", "verify", part], ["container", "convert", part]):
        code, out, err = nvdla_command(*words, *(["net.tar"] if "convert" in words else []))
        assert code == 0, err
        assert "NVDLA loadable" in out or "net.tar" in out
    assert nvdla.load("net.tar") == nvdla.load(part)
    for words in (["compile", "--check"], ["csb", "show"], ["trace", "replay", "--config", "nv_small"]):
        code, _, err = nvdla_command(*words, part)
        assert code == 2 and f"{part}: must be " in err and "got an NVDLA loadable" in err
    for words in (["net.nvpkg/part9.loadable"], ["container", "list", "net.nvpkg/part9.loadable"]):
        code, _, err = nvdla_command(*words)
        assert code == 2 and "net.nvpkg/part9.loadable" in err and ("no such file" in err or "is missing" in err)


@pytest.mark.parametrize("command", ["graph", "timeline", "export"])
def test_a_wrong_suffix_is_that_of_the_name_as_typed(command, folder, nvdla_command):
    code, _, err = nvdla_command(command, "net.nvpkg", "-o", "drawing")
    assert code == 2 and err.startswith(f"nvdla {command}: drawing: suffix of ") and err.rstrip().endswith("got ''")


@pytest.mark.parametrize("words", [["run"], ["compare", "--onnx", "host.onnx"]], ids=["run", "compare"])
def test_a_file_of_several_images_is_refused_with_the_way_to_give_them(words, folder, nvdla_command, samples):
    """A package as a loadable: a file per image."""
    np.save("x4.npy", np.repeat(np.load("x.npy"), 4, axis=0))
    code, _, err = nvdla_command(*words, "net.nvpkg", "-i", "x4.npy")
    assert code == 2 and "x4.npy: input " in err and "Give one image per file: --input FILE" in err
    assert nvdla_command("run", "net.nvpkg", "-i", "x.npy", "-i", "x.npy")[0] == 0
    np.save("digits.npy", np.zeros((4, 1, 28, 28), np.int8))
    code, _, err = nvdla_command("run", str(samples / "lenet.loadable"), "-i", "digits.npy")
    assert code == 2 and "Give one image per file: --input FILE" in err


def test_packages_differ_in_their_loadables_and_their_other_files(folder, nvdla_command, as_documented, plant):
    """Each loadable is compared with that of the same name, host parts and the manifest by content."""
    code, out, err = nvdla_command("diff", "net.nvpkg", "net.nvpkg")
    assert (code, out, err) == (0, "The packages are equal.\n", "")
    with zipfile.ZipFile("net.nvpkg") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def shifted(task):
        task.operation(1).op.out_cvt.truncate += 1

    members["part1.onnx"] = members["part3.onnx"]
    members["part2.loadable"] = plant(nvdla.load("net.nvpkg/part2.loadable"), shifted).to_bytes()
    with zipfile.ZipFile("other.nvpkg", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    code, out, err = nvdla_command("diff", "net.nvpkg", "other.nvpkg", "--json")
    assert (code, err) == (1, "")
    document = json.loads(out)
    as_documented(document)
    assert (document["a"], document["b"], document["abi_a"]) == ("net.nvpkg", "other.nvpkg", "new")
    found = {(change["area"], change["where"], change["field"]) for change in document["changes"]}
    assert ("package", "part1.onnx", None) in found
    assert ("operation", "part2.loadable: operation 0/1 (SDP)", "out_cvt.truncate") in found
    assert all(where.startswith(("part1.onnx", "part2.loadable: ")) for _, where, _ in found)


def test_a_part_is_a_loadable_of_its_own(folder, nvdla_command):
    """The part's path gives the same as the file that is unpacked, layer names too."""
    with zipfile.ZipFile("net.nvpkg") as archive:
        archive.extractall("unpacked")
    _, inside, _ = nvdla_command("cycles", "net.nvpkg/part2.loadable", "--json")
    _, outside, _ = nvdla_command("cycles", "unpacked/part2.loadable", "--json")
    inside, outside = json.loads(inside), json.loads(outside)
    assert inside.pop("loadable") == "net.nvpkg/part2.loadable" and outside.pop("loadable")
    assert inside == outside and inside["operations"][0]["layer"] == "b"
    code, _, err = nvdla_command("cycles", "net.nvpkg/part1.loadable")
    assert code == 2 and "must be in the package, but is missing" in err


def test_parts_get_the_values_of_a_run(folder, nvdla_command):
    """compare: every part agrees with the float model as well as the compiler measured on its own data."""
    _, out, _ = nvdla_command("compare", "net.nvpkg", "--onnx", "host.onnx", "-i", "x.npy", "--json")
    documents = [each["document"] for each in json.loads(out)["parts"] if each["kind"] == "accelerator"]
    assert [each["different"] for each in documents] == [0, 0, 0]
    assert all(row["snr_db"] > 30 for each in documents for row in each["tensors"])
    code, _, err = nvdla_command("compare", "net.nvpkg", "-i", "x.npy")
    assert code == 2 and "give --onnx, --tflite or --caffe MODEL" in err


def test_an_operation_is_looked_for_in_all_parts(folder, nvdla_command):
    code, out, _ = nvdla_command("explain", "net.nvpkg", "b", "--json")
    found = [each["part"] for each in json.loads(out)["parts"] if each["kind"] == "accelerator"]
    assert code == 0 and found == [2]
    code, _, err = nvdla_command("explain", "net.nvpkg", "nothing")
    assert code == 2 and err.count("unknown operation or layer nothing") == 3 and "part 4: " in err
    code, out, _ = nvdla_command("cycles", "net.nvpkg", "--op", "y", "--json")
    assert [each["part"] for each in json.loads(out)["parts"] if each["kind"] == "accelerator"] == [4]
    whole = json.loads(nvdla_command("cycles", "net.nvpkg", "--json")[1])
    assert json.loads(out)["totals"] == whole["totals"], "of the whole package"


def test_a_later_part_alone_is_not_compared_with_the_model(folder, nvdla_command):
    words = ("--onnx", "host.onnx", "--random-input")
    assert nvdla_command("compare", "net.nvpkg/part0.loadable", *words)[0] in (0, 1)
    code, _, err = nvdla_command("compare", "net.nvpkg/part4.loadable", *words)
    assert code == 2 and err.endswith("Compare the whole package, net.nvpkg.\n")


def test_a_package_runs_on_random_input(folder, nvdla_command, as_documented):
    results = [nvdla_command("run", "net.nvpkg", "--random-input", seed, "--json")[1] for seed in (1, 1, 2)]
    as_documented(json.loads(results[0]))
    first, again, other = (json.loads(each)["outputs"] for each in results)
    assert first == again != other and first[0]["shape"] == [1, 4, 8, 8]


def test_run_observes_every_part_of_a_package(folder, nvdla_command, as_documented):
    """Dumps, logs, counters and times of each part are those of its inputs in the run of the package."""
    observed = ("--dump-ops", "ops", "--csb-log", "log.txt", "--stats", "--profile", "1")
    code, out, err = nvdla_command("run", "net.nvpkg", "-i", "x.npy", *observed)
    assert code == 0, err
    assert all(f"net.nvpkg/part{number}.loadable" in out for number in (0, 2, 4)) and out.count("statistics") == 3
    assert all(Path(f"log.part{number}.txt").read_text(encoding="utf-8").count("\nW ") > 50 for number in (0, 2, 4))
    index = json.loads(Path("ops/part4/index.json").read_text(encoding="utf-8"))["operations"][-1]
    real = nvdla.load("net.nvpkg").run("x.npy")["y"]
    elements = np.load(f"ops/part4/{index['file']}").astype(int)
    assert np.allclose((elements - index["zero_point"]) * index["scale"], real, rtol=1e-5)
    code, out, _ = nvdla_command("run", "net.nvpkg", "-i", "x.npy", "--profile", "1", "--json")
    as_documented(json.loads(out))
    assert [bool(part.get("run", {}).get("profile")) for part in json.loads(out)["parts"]] == [True, False] * 2 + [True]


def test_run_refuses_options_of_loadables_for_packages(folder, nvdla_command):
    for words in (["--abi", "old"], ["--input-scale", "1"], ["--output-scale", "1"], ["--hardware-only"]):
        code, _, err = nvdla_command("run", "net.nvpkg", "-i", "x.npy", *words)
        assert code == 2 and f"{words[0]}: must be for a loadable, got a package" in err
        assert "net.nvpkg/part0.loadable" in err


def test_run_compares_and_names_the_outputs_of_packages(folder, nvdla_command):
    Path("names.txt").write_text("\n".join(f"class{number}" for number in range(300)), encoding="utf-8")
    words = ("run", "net.nvpkg", "-i", "x.npy", "--threads", "1")
    code, out, _ = nvdla_command(*words, "-o", "y.npy", "--class-names", "names.txt")
    assert code == 0 and re.search(r"^ +(\d+) +\S+ +class\1$", out, flags=re.M)
    assert "y: exact" in nvdla_command(*words, "--compare", "y=y.npy")[1]
    np.save("other.npy", np.load("y.npy") + 1)
    code, out, _ = nvdla_command(*words, "--compare", "other.npy")
    assert code == 1 and "y: 256 of 256 elements differ, by at most 1;" in out
    code, _, err = nvdla_command(*words, "--compare", "y.bin")
    assert code == 2 and "a golden of a package" in err


def test_signed_integers_are_elements_of_the_input(folder, nvdla_command):
    compiled = nvdla.compile("host.onnx", calibration=np.load("calibration.npy"))
    part = compiled.parts[0]
    elements = quantize(np.load("x.npy"), part.scales["x"], "int8")
    real = elements.astype(np.float32) * np.float32(part.scales["x"])
    wanted = compiled.run(real)["y"]
    assert not np.array_equal(wanted, compiled.run(elements.astype(np.float32))["y"]), "floats are real numbers"
    network = open_network("net.nvpkg")
    for kind in (np.int8, np.int64):
        np.save("q.npy", elements.astype(kind))
        assert nvdla_command("run", "net.nvpkg", "-i", "q.npy", "-o", "y.npy")[0] == 0
        runs = [np.load("y.npy"), compiled.run(elements.astype(kind))["y"], compiled.run("q.npy")["y"]]
        samples = [network.prepare("q.npy"), network.prepare(elements[0].astype(kind))]
        runs += [row.reshape(wanted.shape) for row in network.run(samples)]
        assert all(np.array_equal(wanted, each) for each in runs) and len(runs) == 5
    np.save("q.npy", 2 * elements.astype(np.int16))
    np.savez("q.npz", x=elements)
    code, _, err = nvdla_command("run", "net.nvpkg", "-i", "q.npy")
    assert code == 2 and "input x: values for the input's int8: must be whole numbers from -128 to 127" in err
    assert "Give real numbers (float32), or quantize them" in err
    code, _, err = nvdla_command("run", "net.nvpkg", "-i", "q.npz")
    assert code == 2 and "got a NumPy archive (.npz). Save one of its arrays as .npy" in err


def test_host_parts_are_measured_on_request(folder, nvdla_command, as_documented):
    code, out, err = nvdla_command("cycles", "net.nvpkg", "--host-time", "measured", "--json")
    assert code == 0, err
    document = json.loads(out)
    as_documented(document)
    times = [each["seconds"] for each in document["parts"] if each["kind"] == "host"]
    assert len(times) == 2 and min(times) > 0 and sum(times) == document["totals"]["host_seconds"]
    sums = document["totals"]
    image = sums["image_seconds"]
    assert image["host"] == sums["host_seconds"] and image["accelerator"] == pytest.approx(sums["cycles"] / 1e9)
    assert 0 < image["transfers"] < 1 and sums["frames_per_second"] == pytest.approx(1 / sum(image.values()))
    sums = json.loads(nvdla_command("cycles", "net.nvpkg", "--json")[1])["totals"]
    assert sums["host_seconds"] is sums["image_seconds"] is sums["frames_per_second"] is None
    text = " ".join(nvdla_command("cycles", "net.nvpkg", "--host-time", "measured")[1].split())
    assert re.search(r"2 host nodes [\d.]+ ms in onnxruntime on this machine \(19% of multiplications\)", text)
    rows = re.findall(
        r"(accelerator \(cycle model\)|host parts \(measured\)|conversion of values \(measured\)|total) ([\d.]+) ", text
    )
    *times, whole = [float(number) for _, number in rows]
    assert len(times) == 3 and sum(times) == pytest.approx(whole, abs=0.002) and "100.0%" in text
    assert re.search(rf"; together {whole:.3f} ms per image, [\d,.]+ frames per second", text)
    code, _, err = nvdla_command("cycles", "net.nvpkg/part0.loadable", "--host-time", "measured")
    assert code == 2 and "has no host part" in err
    code, _, err = nvdla_command("cycles", "nofile.nvpkg", "--host-time", "measured")
    assert code == 2 and "nofile.nvpkg: cannot be read" in err


def test_a_fraction_of_the_network_has_no_frame_rate(folder, nvdla_command):
    assert "runs per second" not in nvdla_command("cycles", "net.nvpkg")[1]


def test_the_report_has_a_page_per_part_and_host_rows(folder, nvdla_command, as_documented):
    code, out, err = nvdla_command("report", "net.nvpkg", "-o", "pages", "--json")
    assert code == 0, err
    document = json.loads(out)
    as_documented(document)
    assert sorted(os.listdir("pages")) == ["index.html", *(f"part{n}.loadable.html" for n in (0, 2, 4))]
    assert [row["page"] is None for row in document["loadables"]] == [False, True, False, True, False]
    assert document["loadables"][1]["error"].startswith(
        "runs on the host, not timed: 1 node, 10% of the multiplications; MatMul: "
    )


def test_view_has_an_index_of_the_parts_and_their_pages(folder):
    parser = argparse.ArgumentParser()
    view.configure(parser)
    source = view.Folder(parser.parse_args(["net.nvpkg"]))
    assert [row["name"].partition(".")[0] for row in source.page("").document["rows"]] == [
        "part0", "part1 (host): MatMul", "part2", "part3 (host): MatMul", "part4"
    ]  # fmt: skip
    assert source.page("part4.loadable").document["sides"][0]["title"].startswith("part4.loadable")


def values_of(page):
    return page["sides"][0]["run"], page["sides"][0]["tensors"]


def test_report_and_view_show_the_parts_in_a_run_of_the_package(folder, nvdla_command):
    """The run on every part's page has the result of the whole package; a directory takes no inputs."""
    code, _, err = nvdla_command("report", "net.nvpkg", "-i", "x.npy", "-o", "pages", "--json")
    assert code == 0, err
    parser = argparse.ArgumentParser()
    view.configure(parser)
    source = view.Folder(parser.parse_args(["net.nvpkg", "--input", "x=x.npy"]))
    results = nvdla.load("net.nvpkg").run("x.npy")["y"]
    for number in (0, 2, 4):
        run, tensors = values_of(source.page(f"part{number}.loadable").document)
        assert run["error"] is None and run["wrote"]
        assert os.path.getsize(f"pages/part{number}.loadable.html") > 10_000
    row, (_, largest, _) = tensors[run["outputs"][0][1]], run["outputs"][0][2][0]
    assert (largest - row["zero"]) * row["scale"] == pytest.approx(results.max())
    other = view.Folder(parser.parse_args(["net.nvpkg", "--random-input", "7"])).page("part4.loadable").document
    assert values_of(other)[1] != tensors
    code, _, err = nvdla_command("report", ".", "-i", "x.npy")
    assert code == 2 and "inputs: must be for one loadable, got a directory" in err
    code, _, err = nvdla_command("report", "net.nvpkg", "net.nvpkg/part0.loadable")
    assert code == 2 and "must be one loadable for two sides, got several" in err


def test_a_damaged_member_is_one_line(folder, nvdla_command):
    data = bytearray((folder / "net.nvpkg").read_bytes())
    place = data.index(b"part2.loadable") + 200
    data[place : place + 64] = bytes(64)
    (folder / "bad.nvpkg").write_bytes(data)
    code, _, err = nvdla_command("cycles", "bad.nvpkg/part2.loadable")
    assert code == 2 and len(err.splitlines()) == 1 and "bad.nvpkg/part2.loadable" in err


def halved(member: str) -> None:
    """Write bad.nvpkg: net.nvpkg with the first half of a member."""
    with zipfile.ZipFile("net.nvpkg") as old, zipfile.ZipFile("bad.nvpkg", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data[: len(data) // 2] if name == member else data)


@pytest.mark.parametrize("member", ["part0.loadable", "part1.onnx", "part2.loadable.layers.json", "manifest.json"])
def test_doctor_names_the_damaged_file_of_a_package_and_checks_the_loadables_that_are_left(
    member, folder, nvdla_command
):
    halved(member)
    code, out, err = nvdla_command("doctor", "bad.nvpkg")
    assert code == 2 and len(err.splitlines()) == 1 and member in err
    for part in ("part0.loadable", "part2.loadable", "part4.loadable"):
        assert (f"bad.nvpkg/{part} on nv_small" in out) == (part != member)
    code, out, err = nvdla_command("doctor", "bad.nvpkg", "--json")
    assert code == 2 and member in json.loads(out or err)["message"]


def test_a_member_that_cannot_be_unpacked_is_named(folder, nvdla_command):
    data = bytearray(Path("net.nvpkg").read_bytes())
    with zipfile.ZipFile("net.nvpkg") as archive:
        place = archive.getinfo("part0.loadable").header_offset + 200
    data[place : place + 64] = bytes(64)
    Path("bad.nvpkg").write_bytes(data)
    for command in ("cycles", "doctor"):
        code, _, err = nvdla_command(command, "bad.nvpkg")
        assert code == 2 and "bad.nvpkg: member part0.loadable: cannot be unpacked (damaged?)" in err


@pytest.mark.parametrize("command", [*sorted(PER_PART), "run", "evaluate", "report", "view", "explore", "hexdump"])
def test_a_package_that_is_cut_off_is_named_as_such(command, folder, nvdla_command):
    Path("half.nvpkg").write_bytes(Path("net.nvpkg").read_bytes()[:5000])
    words = {"evaluate": ["x.npy"], "view": ["--no-browser"]} | PER_PART | REFUSED
    code, _, err = nvdla_command(command, "half.nvpkg", *words.get(command, []))
    assert code == 2 and "half.nvpkg: must be an intact package of nvdla compile (cut off?)" in err, err


def test_a_member_is_limited_like_the_package(folder, nvdla_command, monkeypatch):
    from nvdla.util import files

    monkeypatch.setattr(files, "FREELY_UNPACKED", 0)
    monkeypatch.setattr(files, "MAX_RATIO", 0)
    code, _, err = nvdla_command("cycles", "net.nvpkg/part2.loadable")
    assert code == 2 and "size: must be at most 0 bytes" in err


def changed_manifest(change):
    """Write changed.nvpkg: net.nvpkg with a manifest that ``change`` has edited."""
    with zipfile.ZipFile("net.nvpkg") as old, zipfile.ZipFile("changed.nvpkg", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "manifest.json":
                manifest = json.loads(data)
                change(manifest["parts"])
                data = json.dumps(manifest).encode()
            new.writestr(name, data)


def test_packages_of_earlier_releases_have_no_share(folder, nvdla_command):
    changed_manifest(lambda parts: [part.pop("rows") for part in parts])
    code, out, err = nvdla_command("cycles", "changed.nvpkg")
    assert code == 0, err
    assert "in 3 parts, 2 host nodes not timed, 4 transfers, 4.0 KiB in total" in " ".join(out.split())


@pytest.mark.parametrize(
    "row",
    [3, {}, {"name": "a", "op": "b", "reason": "c", "macs": -1}, {"name": 1, "op": "b", "reason": "c", "macs": 1}],
)
def test_bad_rows_of_nodes_are_refused(row, folder, nvdla_command):
    changed_manifest(lambda parts: parts[1].update(rows=[row]))
    code, _, err = nvdla_command("cycles", "changed.nvpkg")
    assert code == 2 and len(err.splitlines()) == 1 and "manifest.json: parts[1].rows[0]" in err


def test_a_package_of_a_quantized_model_is_compared_on_the_integers_that_the_model_takes(
    nvdla_command, corpus, tmp_path
):
    pytest.importorskip("ai_edge_litert")
    model, package = corpus / "tflite" / "misc_int8.tflite", tmp_path / "net.nvpkg"
    code, out, _ = nvdla_command("compile", model, "-o", package, "-q")
    assert code == 0
    assert f"nvdla compare {package} --tflite {model} --input FILE" in out
    code, out, _ = nvdla_command("compare", package, "--tflite", model, "--random-input", "--json")
    documents = [part["document"] for part in json.loads(out)["parts"] if part["kind"] == "accelerator"]
    assert code == 0 and len(documents) == 2
    assert all(document["compared"] and not document["different"] for document in documents)
    code, _, error = nvdla_command("compare", package, "--tflite", model)
    assert (code, "no input: give --input FILE or --random-input" in error) == (2, True)


def pictures_of_another_size() -> list[np.ndarray]:
    """Write a.png and b.png, and return what net.nvpkg takes of them with --resize --mean 128 --std 64."""
    pillow = pytest.importorskip("PIL.Image")
    inputs = []
    for seed, name in enumerate(("a.png", "b.png")):
        picture = pillow.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 20, 3), dtype=np.uint8))
        picture.save(name)
        pixels = np.asarray(picture.resize((8, 8), pillow.Resampling.BILINEAR), np.float32)
        inputs.append(((pixels - 128) / 64).transpose(2, 0, 1)[None])
    return inputs


OPTIONS = ("--resize", "--mean", "128", "--std", "64")


def test_a_package_runs_several_pictures_with_the_options_of_images(folder, nvdla_command):
    inputs = pictures_of_another_size()
    code, out, err = nvdla_command("run", "net.nvpkg", "--input", "a.png", "b.png", *OPTIONS, "-o", "y.npy")
    assert code == 0, err
    assert "y: 2x4x8x8 float32" in out and "  image 1\n" in out
    machine = nvdla.compiler.frontend.package.unpack("net.nvpkg").machine()
    np.testing.assert_array_equal(np.load("y.npy"), np.concatenate([machine.run({"x": each})["y"] for each in inputs]))
    code, out, _ = nvdla_command("run", "net.nvpkg", "--input", "a.png", "b.png", *OPTIONS, "--json")
    assert [len(image) for image in json.loads(out)["outputs"][0]["top"]] == [5, 5]
    code, _, err = nvdla_command("run", "net.nvpkg", "--input", "a.png")
    assert code == 2 and "size: must be 8 x 8 (width x height), got 20 x 16. Scale the image, or use --resize." in err


def test_other_commands_on_a_package_take_the_options_of_images(folder, nvdla_command):
    (wanted, *_) = pictures_of_another_size()
    network = open_network("net.nvpkg", pixels=PixelConversion((128.0,), (64.0,), resize=True))
    np.testing.assert_array_equal(network.prepare("a.png"), wanted)
    words = ("evaluate", "net.nvpkg", "a.png", "--predict-only", "--samples", "s.jsonl", *OPTIONS)
    assert nvdla_command(*words)[0] == 0
    code, out, err = nvdla_command("doctor", "net.nvpkg", "--input", "a.png", "b.png", *OPTIONS)
    assert code == 0, err
    assert "2 runs" in out


def test_a_package_of_a_batch_ranks_the_classes_of_each_image(nvdla_command, tmp_path, monkeypatch):
    """As a loadable of a batch does; one image has one list."""
    from onnx import helper, numpy_helper, save

    monkeypatch.chdir(tmp_path)
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32)[:, :, None, None], "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("GlobalAveragePool", ["c"], ["y"])]
    sizes = {"x": [8, 8], "y": [1, 1]}
    values = [helper.make_tensor_value_info(name, 1, ["n", 4, *size]) for name, size in sizes.items()]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], [weights])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
    images = np.eye(4, dtype=np.float32)[[2, 0], :, None, None] * np.ones((2, 4, 8, 8), np.float32)
    np.save("images.npy", images)
    Path("names.txt").write_text("a\nb\nc\nd\n")
    for number, image in enumerate(images):
        np.save(f"{number}.npy", image[None])
    for images_at_once, name, files in ((2, "two.nvpkg", ["images.npy"]), (1, "one.nvpkg", ["0.npy", "1.npy"])):
        shape = f"x={images_at_once},4,8,8"
        code, _, err = nvdla_command("compile", "net.onnx", "--shape", shape, "--calibrate", "images.npy", "-o", name)
        assert code == 0, err
        words = ("run", name, "--input", *files, "--top", "1", "--class-names", "names.txt")
        code, out, err = nvdla_command(*words)
        assert code == 0, err
        lines = [line.split() for line in out.partition("float32\n")[2].splitlines()]
        assert [[line[0], line[-1]] for line in lines] == [["image", "0"], ["2", "c"], ["image", "1"], ["0", "a"]], out
        top = json.loads(nvdla_command(*words, "--json")[1])["outputs"][0]["top"]
        assert [rank["label"] for (rank,) in top] == ["c", "a"]
    assert "image 0" not in nvdla_command("run", "one.nvpkg", "--input", "0.npy")[1]


def test_a_whole_model_in_a_package_is_called_a_package(nvdla_command, samples, tmp_path):
    words = ("compile", samples / "lenet.onnx", "--config", "nv_full", "--precision", "fp16", "--json")
    for name, kind in (("net.nvpkg", "package"), ("net.loadable", "loadable")):
        code, out, err = nvdla_command(*words, "-o", tmp_path / name)
        assert code == 0, err
        assert json.loads(out)["kind"] == kind


def test_every_worker_of_an_evaluation_runs_the_host_parts(folder):
    """Workers are copies of a new process, which has no threads yet."""
    np.save("many.npy", np.repeat(np.load("x.npy"), 8, axis=0))
    words = ("evaluate", "net.nvpkg", "many.npy", "--predict-only", "--workers", "2", "--samples", "s.jsonl")
    result = subprocess.run([sys.executable, "-m", "nvdla", *words], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in Path("s.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    assert len(rows) == 8 and len({json.dumps(row["top"]) for row in rows}) == 1
