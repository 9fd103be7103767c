"""Packages of ``nvdla compile`` are files of strangers: each field is checked, small ones take little memory."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile

import numpy as np
import pytest

from nvdla.errors import NvdlaError

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def members():
    """The files of a package with an accelerator and a host part."""
    import nvdla
    from tests.compiler.frontend import models

    made = nvdla.compile(models.classifier(np.random.default_rng(3)), "nv_full", "fp16")
    assert {part.kind for part in made.parts} == {"accelerator", "host"}
    with zipfile.ZipFile(io.BytesIO(made.package)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(members, packing=zipfile.ZIP_DEFLATED, twice=None):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", packing) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        if twice:
            with pytest.warns(UserWarning):
                archive.writestr(twice, members[twice])
    return stream.getvalue()


def run(data):
    from nvdla.compiler.frontend.package import unpack

    return unpack(data).machine().run(np.zeros((1, 3, 12, 12), np.float32))


def first(manifest, kind):
    return next(part for part in manifest["parts"] if part["kind"] == kind)


def of_accelerator(**fields):
    return lambda manifest: first(manifest, "accelerator").update(fields)


def of_binding(way, **fields):
    return lambda manifest: [each.update(fields) for each in first(manifest, "accelerator")[way]]


WRONG = {
    "no parts": (lambda m: m.pop("parts"), "parts: must be list, got nothing"),
    "parts are a number": (lambda m: m.update(parts=7), "parts: must be list, got int"),
    "too many parts": (lambda m: m.update(parts=m["parts"] * 600), "must be at most 1000, got 1200"),
    "nothing is done": (lambda m: m.update(parts=[]), "'y': must be produced by a part"),
    "parts in the wrong order": (lambda m: m["parts"].reverse(), "must be produced by an earlier part"),
    "kind": (of_accelerator(kind="evil"), "must be accelerator or host"),
    "file outside": (of_accelerator(file="../../etc/passwd"), r"must have the member '\.\./"),
    "file of another kind": (of_accelerator(file={}), "file: must be str, got dict"),
    "precision": (of_accelerator(precision="evil"), "must be one of int8"),
    "no scale": (of_accelerator(scales={}), "scales: must contain tensor"),
    "images": (of_accelerator(images=10**9), "must be 1 .. 256"),
    "images that do not fit": (of_accelerator(images=2), "elements"),
    "pixels": (of_accelerator(pixels=7), "pixels: must be dict, got int"),
    "unknown tensor": (of_binding("outputs", tensor="other"), "scales: must contain tensor 'other'"),
    "unknown value": (of_binding("inputs", value="other"), "'other': must be produced by an earlier part"),
    "endless shape": (of_binding("inputs", shape=[10**9, 10**9]), "must have at most .* elements"),
    "shape of words": (of_binding("inputs", shape="abc"), "must be a list of at most 8 sizes"),
    "negative shape": (of_binding("inputs", shape=[-1, 432]), "must be a list of at most 8 sizes"),
    "another shape": (of_binding("inputs", shape=[1, 1, 1]), "elements .loadable., got 1"),
    "unknown index": (of_binding("inputs", index="other"), "must be an array of 432 positions"),
    "unknown output": (lambda m: m.update(outputs=["other"]), "'other': must be produced by a part"),
    "inputs are a list": (lambda m: m.update(inputs=["x"]), "inputs: must be dict, got list"),
    "input of words": (lambda m: m.update(inputs={"x": "1x3"}), "must be a list of at most 8 sizes"),
    "version": (
        lambda m: m.update(version="9" * 100),
        "must have format 'nvdla-package' 1 for this release, got .* '9{80}'",
    ),
}
WRONG |= {
    f"scale {value}": (of_accelerator(scales={"x": value}), "scales: x: must be a positive number")
    for value in ("nan", float("nan"), float("inf"), 0, -1, None, True)
}


@pytest.mark.parametrize("name", WRONG)
def test_every_field_of_a_manifest_is_checked(name, members):
    change, said = WRONG[name]
    manifest = json.loads(members["manifest.json"])
    change(manifest)
    with pytest.raises(NvdlaError, match=said):
        run(packed({**members, "manifest.json": json.dumps(manifest).encode()}))


@pytest.mark.parametrize(
    "text", [b"[]", b"{", b"\xff\xfe", b"NaN", b"[" * 200_000, b'{"format":' + b"9" * 10_000 + b"}"]
)
def test_a_manifest_that_is_none(text, members):
    with pytest.raises(NvdlaError, match=r"manifest\.json|must have format"):
        run(packed({**members, "manifest.json": text}))


def test_members_that_are_missing_cut_off_or_there_twice(members):
    assert run(packed(members))["y"].shape == (1, 5)
    for name in members:
        if name.endswith(".layers.json"):
            continue
        for changed in (None, members[name][: len(members[name]) // 2], bytes(100)):
            rest = {each: data for each, data in members.items() if each != name}
            with pytest.raises(NvdlaError):
                run(packed(rest if changed is None else {**members, name: changed}))
    with pytest.raises(NvdlaError, match=r"member 'manifest\.json': must be unique"):
        run(packed(members, twice="manifest.json"))
    whole = packed(members)
    for size in (len(whole) // 2, len(whole) - 10):
        with pytest.raises(NvdlaError, match="cut off"):
            run(whole[:size])


def npz_of_zeros(size):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as member:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (size,)})
        member.write(header.getvalue())
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))
    return stream.getvalue()


@pytest.mark.parametrize("bomb", ["member", "manifest", "array"])
def test_a_small_package_takes_little_memory(bomb, members):
    """As packed by others: 3 MB took 6 GB."""
    large = {
        "member": lambda: {"part0.loadable": bytes(600 << 20)},
        "manifest": lambda: {"manifest.json": b" " * (20 << 20) + members["manifest.json"]},
        "array": lambda: {"constants.npz": npz_of_zeros(600 << 20)},
    }[bomb]()
    data = packed({**members, **large})
    del large

    tracemalloc.start()
    try:
        with pytest.raises(NvdlaError, match=r"unpacked size: must be at most|must have at most 16777216"):
            run(data)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_a_package_packed_by_other_methods_is_refused(members):
    for packing in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(NvdlaError, match="must be none or deflate"):
            run(packed(members, packing))


def test_parts_with_false_values_are_refused(members):
    """Whatever a host part makes: a value that no part made is an error, not a KeyError."""
    manifest = json.loads(members["manifest.json"])
    host = first(manifest, "host")
    host["outputs"].append({"tensor": "t", "value": "promised", "shape": [1], "index": None})
    manifest["outputs"] = ["promised"]
    with pytest.raises(NvdlaError, match="output promised: must be produced by a part of the model"):
        run(packed({**members, "manifest.json": json.dumps(manifest).encode()}))


def external(tensor):
    """The tensor with data in a file beside whoever runs the package."""
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "secret.bin"


def of_initializer(onnx, graph):
    graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(2, np.float32), "k"))
    external(graph.initializer[-1])


def of_constant(onnx, graph):
    value = onnx.numpy_helper.from_array(np.zeros(2, np.float32), "k")
    external(value)
    graph.node.append(onnx.helper.make_node("Constant", [], ["k"], value=value))


def of_branch(onnx, graph):
    inner = onnx.helper.make_graph([], "branch", [], [])
    of_initializer(onnx, inner)
    graph.node.append(onnx.helper.make_node("If", ["c"], ["k"], then_branch=inner, else_branch=inner))


def of_sparse(onnx, graph):
    graph.sparse_initializer.add().values.name = "k"
    external(graph.sparse_initializer[0].values)


@pytest.mark.parametrize("plant", [of_initializer, of_constant, of_branch, of_sparse])
def test_a_host_part_reads_no_file(members, plant, tmp_path, monkeypatch):
    """onnxruntime takes external data of a model without a place from the folder in which a user happens to be."""
    import onnx

    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(b"secret!!")
    name = next(each for each in members if each.endswith(".onnx"))
    model = onnx.ModelProto.FromString(members[name])
    plant(onnx, model.graph)
    with pytest.raises(
        NvdlaError, match=r"host part \d: tensor k: its data are in another file. A package contains all"
    ):
        run(packed({**members, name: model.SerializeToString()}))


def test_a_model_with_external_data_in_a_sparse_tensor_or_a_function_is_refused_as_bytes(members):
    import onnx

    import nvdla

    name = next(each for each in members if each.endswith(".onnx"))
    for plant in (lambda model: of_sparse(onnx, model.graph), lambda model: of_constant(onnx, model.functions.add())):
        model = onnx.ModelProto.FromString(members[name])
        plant(model)
        with pytest.raises(NvdlaError, match=r"its data are in another file\. Give the model as a path"):
            nvdla.compile(model, "nv_full", "fp16")
