"""``nvdla inspect``, ``hexdump`` and ``extract`` as a user calls them."""

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

import nvdla
from nvdla.analysis import views
from nvdla.loadable.model import MemoryEntry
from nvdla.program.program import Program

SECTIONS = ["tasks", "submits", "events", "memory", "addresses", "blobs", "tensors", "relocs", "ops", "graph"]


def test_the_overview_answers_the_first_questions(nvdla_command, lenet):
    code, out, _ = nvdla_command("inspect", lenet)
    assert code == 0
    for word in ("nv_small", "new", "CONV=", "data", "1x1x28x28"):
        assert word in out


@pytest.mark.parametrize("section", SECTIONS)
def test_each_section_is_a_table_json_and_yaml_of_the_same_rows(nvdla_command, lenet, section):
    assert nvdla_command("inspect", lenet, f"--{section}")[0] == 0
    from_json = json.loads(nvdla_command("inspect", lenet, f"--{section}", "--json")[1])
    from_yaml = yaml.safe_load(nvdla_command("inspect", lenet, f"--{section}", "--yaml")[1])
    assert from_json == from_yaml
    assert list(from_json) == ["format", "version", section, "proof"]


def test_all_shows_everything(nvdla_command, lenet):
    document = json.loads(nvdla_command("inspect", lenet, "--all", "--json")[1])
    assert list(document) == ["format", "version", "overview", *SECTIONS, "proof"]


def test_all_nine_root_tables_of_the_schema_are_printed(nvdla_command, lenet, tmp_path):
    """Every field of the root table has a section, and every entry its row."""
    from nvdla.loadable.enums import EventOp, EventType
    from nvdla.loadable.model import EventEntry
    from nvdla.loadable.schema import LOADABLE

    sections = {
        "version": "overview",
        "task_list": "tasks",
        "submit_list": "submits",
        "event_list": "events",
        "memory_list": "memory",
        "address_list": "addresses",
        "blobs": "blobs",
        "tensor_desc_list": "tensors",
        "reloc_list": "relocs",
    }
    assert sections.keys() == {field.name for field in LOADABLE.fields}
    plain = nvdla.load(lenet)
    event = EventEntry(7, EventType.EVENTTYPE1, 3, 9, EventOp.SIGNAL)
    loadable = dataclasses.replace(plain, events=(*plain.events, event))
    loadable.save(tmp_path / "events.loadable")
    document = json.loads(nvdla_command("inspect", tmp_path / "events.loadable", "--all", "--json")[1])
    assert document["events"] == [
        {"event": 0, "type": "EVENTTYPE0", "target": 0, "val": 1, "op": "SIGNAL"},
        {"event": 1, "type": "EVENTTYPE0", "target": 0, "val": 1, "op": "WAIT"},
        {"event": 2, "type": "EVENTTYPE0", "target": 0, "val": 2, "op": "SIGNAL"},
        {"event": 7, "type": "EVENTTYPE1", "target": 3, "val": 9, "op": "SIGNAL"},
    ]
    assert document["submits"] == [{"submit": each.id, "tasks": list(each.task_ids)} for each in loadable.submits]
    kept = ("address", "memory", "offset", "size")
    assert [tuple(row[key] for key in kept) for row in document["addresses"]] == [
        (each.id, each.mem_id, each.offset, each.size) for each in loadable.addresses
    ]
    for row in document["addresses"]:
        assert 0 <= row["reaches"] <= loadable.memory(row["memory"]).size - row["offset"]
    assert "EVENTTYPE1" in nvdla_command("inspect", tmp_path / "events.loadable", "--events")[1]


def profile_of(nvdla_command, path):
    overview = json.loads(nvdla_command("inspect", path, "--json")[1])["overview"]
    return overview["profile"], overview["profile_reason"]


def test_files_of_other_compilers_have_no_profile(nvdla_command, lenet):
    assert profile_of(nvdla_command, lenet) == (
        None,
        "not from NVIDIA's compiler, whose first memory is empty and has 4096 bytes",
    )


def test_the_profile_follows_from_pooled_constants_and_merged_operations(nvdla_command, lenet, tmp_path, plant):
    """The sample with the first memory of NVIDIA's compiler; then without merged operations; then not pooled."""
    path = tmp_path / "net.loadable"

    def profile(loadable):
        dataclasses.replace(loadable, memories=(MemoryEntry(99, 4096), *loadable.memories)).save(path)
        return profile_of(nvdla_command, path)

    def without_relu(task):
        for operation in task.operations():
            if operation.op_type.name == "SDP":
                operation.op.x1_op.act = 0

    plain = nvdla.load(lenet)
    assert profile(plain) == ("fast-math", "constants share a memory; operation 0/1 merges several layers")
    apart = plant(plain, without_relu)
    wanted = "default, performance or fast-math", "constants share a memory; no operations to merge"
    assert profile(apart) == wanted
    pool = apart.memories[0]
    memories = [dataclasses.replace(pool, contents=pool.contents[:1], offsets=(0,))]
    memories += [
        MemoryEntry(100 + i, 4096, flags=pool.flags, contents=(n,), offsets=(0,))
        for i, n in enumerate(pool.contents[1:3])
    ]
    found = profile(dataclasses.replace(apart, memories=(*memories, *apart.memories[1:])))
    assert found == ("basic", "each of 3 constants has its own memory")
    size = apart.blob(pool.contents[0]).length
    assert size % 4096
    for given, names, reason in (
        (size, "basic", f"the memory of the constant has {size} bytes, pools have whole pages"),
        (4096, wanted[0], "the memory of the constant has whole pages, as pools have; no operations to merge"),
    ):
        one = dataclasses.replace(memories[0], size=given)
        assert profile(dataclasses.replace(apart, memories=(one, *apart.memories[1:]))) == (names, reason)


def test_profiles_of_the_corpus_are_never_wrong_and_half_are_unique(cases):
    """The corpus labels its files; Winograd and pooling on the fly are fast-math with another pass."""
    found = Counter()
    for case in cases:
        label = {"wg": "fast-math", "onfly": "fast-math"}.get(case["profile"], case["profile"])
        names, _ = views.compiler_profile(Program.of(nvdla.load(case["file"])))
        possible = names.replace(" or ", ", ").split(", ")
        assert label in possible, case["path"]
        found["one" if possible in (["basic"], ["fast-math"], ["default", "performance"]) else len(possible)] += 1
    assert found == {"one": 279, 3: 225, 4: 55}
    page = (Path(__file__).parents[2] / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    assert "Of 559 files with known profiles, `nvdla inspect` names 279 exactly, 225 as" in " ".join(page.split())


def test_descriptor_bytes_are_named_field_by_field(nvdla_command, lenet):
    code, out, _ = nvdla_command("hexdump", lenet, "task-0-addr0")
    assert code == 0
    assert "task 0 network.num_operations" in out


def test_weights_are_dumped_plainly(nvdla_command, lenet):
    loadable = nvdla.load(lenet)
    blob = max(loadable.blobs, key=lambda each: each.size)
    code, out, _ = nvdla_command("hexdump", lenet, blob.name, "--offset", "16", "--length", "16")
    assert code == 0
    assert bytes(blob.data[16:24]).hex(" ") in out


def test_extract_writes_the_blob(nvdla_command, lenet, tmp_path):
    loadable = nvdla.load(lenet)
    for blob in loadable.blobs:
        assert nvdla_command("extract", lenet, blob.name, "-o", tmp_path / "blob")[0] == 0
        assert (tmp_path / "blob").read_bytes() == bytes(blob.data)


def test_an_unknown_blob_is_one_line(nvdla_command, lenet):
    code, _, err = nvdla_command("hexdump", lenet, "no-such-blob")
    assert code == 2
    assert "no-such-blob" in err


def test_inspecting_does_not_import_numba(lenet):
    check = "import sys; from nvdla.cli.main import main; main(sys.argv[1:]); assert 'numba' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", check, "inspect", lenet, "--all"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_formats_of_cpu_tasks_go_by_the_names_of_their_abi(nvdla_command, lenet, tmp_path):
    from nvdla.compiler.builder.edit import convert_abi

    half = nvdla.load(lenet.replace("lenet.loadable", "lenet_nv_full_fp16.loadable"))
    for abi, number in (("old", 2), ("new", 3)):
        path = tmp_path / f"{abi}.loadable"
        convert_abi(half, abi).save(path)
        rows = json.loads(nvdla_command("inspect", path, "--ops", "--json")[1])["ops"]
        assert [row["precision"] for row in rows if row["type"] == "SOFTMAX"] == ["fp16"]
        graph = json.loads(nvdla_command("graph", path, "--json")[1])
        assert [row["precision"] for row in graph["nodes"] if row["op_type"] == "CPU"] == ["fp16"]
        lines = nvdla_command("hexdump", path, "task-1-op_buf_list")[1].splitlines()
        shown = [line.split() for line in lines if "src_data.format" in line]
        assert shown
        assert all(str(number) in words and "FF16" in words for words in shown)
