"""ONNX files that crash onnx or onnxruntime, or keep them busy: one error, and this process goes on."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper, numpy_helper

import nvdla
from nvdla.cli.main import main
from nvdla.compiler.frontend import isolation
from nvdla.compiler.frontend.isolation import ModelWorker
from nvdla.compiler.frontend.model import read
from nvdla.compiler.frontend.opening import open_session
from nvdla.compiler.frontend.package import unpack
from nvdla.experiments.evaluation import Evaluation, open_source
from tests.compiler.frontend.models import classifier, model, node

pytestmark = pytest.mark.skipif(not isolation.available(), reason="no forks here")
X = {"x": (1, 3, 8, 8)}


def with_constants(nodes, output, constants, shape=None, kind=TensorProto.FLOAT):
    """Nodes of constants alone, whose result is an output beside that of a Relu."""
    net = model([*nodes, node("Relu", "x", "y")], X, {"y": X["x"]}, constants, opset=13)
    net.graph.output.append(helper.make_tensor_value_info(output, kind, shape))
    return net


def least_by_minus_one():
    constants = {"a": np.full(4, np.iinfo(np.int64).min), "b": np.full(4, -1)}
    return with_constants([node("Div", "a b", "c")], "c", constants, (4,), TensorProto.INT64)


def ones(shape, name):
    size = numpy_helper.from_array(np.array(shape, np.int64), f"{name}_shape")
    value = numpy_helper.from_array(np.ones(1, np.float32), "one")
    return helper.make_node("ConstantOfShape", [f"{name}_shape"], [name], value=value), size


def three_products():
    made, size = ones([8000, 8000], "a")
    nodes = [made, node("MatMul", "a a", "b"), node("MatMul", "b a", "c"), node("MatMul", "c a", "d")]
    net = with_constants(nodes, "d", {}, (8000, 8000))
    net.graph.initializer.append(size)
    return net


def large_kernel():
    made = [ones([1, 64, 256, 256], "a"), ones([64, 64, 129, 129], "w")]
    nodes = [*(each for each, _ in made), node("Conv", "a w", "c", pads=[64] * 4)]
    net = with_constants(nodes, "c", {}, (1, 64, 256, 256))
    net.graph.initializer.extend(size for _, size in made)
    return net


def large_constant():
    made, size = ones([1 << 28], "a")
    net = with_constants([made, node("Neg", "a", "b")], "b", {}, (1 << 28,))
    net.graph.initializer.append(size)
    return net


def calls(depth, each=10):
    """Functions that call functions: each ** depth nodes."""
    net = model([helper.make_node(f"F{depth}", ["x"], ["y"], domain="f")], X, {"y": X["x"]})
    net.opset_import.append(helper.make_opsetid("f", 1))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    for level in range(1, depth + 1):
        kind, domain = (f"F{level - 1}", "f") if level > 1 else ("Relu", "")
        values = ["a", *(f"v{number}" for number in range(1, each)), "b"]
        nodes = [helper.make_node(kind, [s], [t], domain=domain) for s, t in itertools.pairwise(values)]
        net.functions.append(helper.make_function("f", f"F{level}", ["a"], ["b"], nodes, opsets))
    return net


REFUSED = {
    "division of the least integer": (least_by_minus_one, r"crashed on it \(SIGFPE\)"),
    "three products of 8000x8000": (
        three_products,
        r"\(MatMul\): too much work: must be at most 10,000,000,000 multiplications \(ModelLimits.folding\), got 512,",
    ),
    "a kernel of 129x129": (large_kernel, r"\(Conv\): too much work"),
    "functions that expand to 10^6 nodes": (
        lambda: calls(6),
        r"nodes \(local functions expanded\): must be at most 20,000, got 1,000,000",
    ),
    "functions that expand to 10^40 nodes": (lambda: calls(40), r"must be at most 20,000, got more than 10\^15"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_is_refused_and_this_process_goes_on(name):
    made, reason = REFUSED[name]
    begin = time.monotonic()
    with pytest.raises(nvdla.FormatError, match=reason):
        read(made())
    assert time.monotonic() - begin < 60
    assert read(classifier(np.random.default_rng(1))).outputs == ["y", "z"]


def test_a_function_that_calls_itself_is_refused():
    net = calls(2)
    net.functions[0].node[0].op_type, net.functions[0].node[0].domain = "F2", "f"
    with pytest.raises(nvdla.FormatError, match=r"must not call itself|must be a valid ONNX model"):
        read(net)


def test_memory_is_limited():
    with pytest.raises(nvdla.NvdlaError) as caught:
        read_within(large_constant(), 1 << 30)
    assert "\n" not in str(caught.value)


def products(length, count):
    """Products of one vector, in a row."""
    values = ["x", *(f"v{number}" for number in range(1, count)), "y"]
    nodes = [node("Mul", f"{source} c", target) for source, target in itertools.pairwise(values)]
    return model(nodes, {"x": (length,)}, {"y": (length,)}, {"c": np.float32(2)}, opset=14)


def read_within(net, memory):
    given = ["bytes", net.SerializeToString()]
    worker = ModelWorker(replace(isolation.LIMITS, memory=memory))
    return worker.call("m", "nvdla.compiler.frontend.model:read_here", given, {}, None, "/", "m")


def test_a_long_vector_is_no_shape():
    """onnx's inference makes an object for each element of a vector, in case that it is the shape of something."""
    assert read_within(products(1 << 27, 1), 1 << 30)


def test_memory_that_onnx_does_not_get_is_not_called_an_invalid_model():
    with pytest.raises(nvdla.NvdlaError, match="the model needs more memory than it may have"):
        read_within(products(1 << 20, 60), 1 << 30)


def test_a_worker_counts_with_the_limits_of_its_caller():
    """The budgets of folding and of host parts, too, which the worker counts itself."""
    worker = ModelWorker(replace(isolation.LIMITS, folding=1 << 10, host=1 << 10))
    with pytest.raises(nvdla.FormatError, match=r"at most 1,024 multiplications \(ModelLimits.folding\)"):
        read(with_constants([node("Abs", "c", "d")], "d", {"c": np.ones((40, 40), np.float32)}), worker=worker)
    net = model([node("Relu", "x", "y")], {"x": (1, 3, 40, 40)}, {"y": (1, 3, 40, 40)})
    with pytest.raises(nvdla.FormatError, match=r"at most 1,024 multiplications \(ModelLimits.host\)"):
        open_session(net, "host part 0", worker)


def test_a_crash_is_one_line_of_the_command(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(least_by_minus_one().SerializeToString())
    done = subprocess.run(
        [sys.executable, "-m", "nvdla", "compile", path, "--check"], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and "crashed on it (SIGFPE)" in done.stderr


def test_what_onnxruntime_logs_is_no_message(tmp_path):
    """A Range without end, which it reports on standard error with colors."""
    constants = {"a": np.int64(0), "b": np.int64(2**62), "c": np.int64(1)}
    net = with_constants([node("Range", "a b c", "r")], "r", constants, None, TensorProto.INT64)
    path = tmp_path / "m.onnx"
    path.write_bytes(net.SerializeToString())
    done = subprocess.run(
        [sys.executable, "-m", "nvdla", "compile", path, "--check"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


# ---- packages


def loop(count, condition):
    """x doubled ``count`` times while ``condition`` holds: "always", or a value that the body computes."""
    body_nodes = [node("Add", "a a", "b"), node("Identity", "going", "on")]
    if condition != "always":
        body_nodes[1] = node("Not", "never", "on")
        body_nodes.insert(0, node("Not", "going", "never"))
    scalar = lambda name, kind: helper.make_tensor_value_info(name, kind, [])  # noqa: E731
    image = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, X["x"])  # noqa: E731
    body = helper.make_graph(
        body_nodes,
        "body",
        [scalar("turn", TensorProto.INT64), scalar("going", TensorProto.BOOL), image("a")],
        [scalar("on", TensorProto.BOOL), image("b")],
    )
    turns = helper.make_node("Loop", ["n", "c", "x"], ["y"], "turns", body=body)
    return model([turns], X, {"y": X["x"]}, {"n": np.int64(count), "c": np.array(True)})


def packed(part):
    """A package of one host part."""
    members = {}
    with zipfile.ZipFile(io.BytesIO(nvdla.compile(loop(2, "always"), "nv_full", "fp16").package)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = next(each for each in members if each.endswith(".onnx"))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for each, data in (members | {name: part.SerializeToString()}).items():
            archive.writestr(each, data)
    return stream.getvalue()


def test_a_loop_runs_in_a_package():
    given = np.ones(X["x"], np.float32)
    assert np.array_equal(unpack(packed(loop(3, "always"))).machine().run(given)["y"], 8 * given)


def test_work_of_a_host_part_is_counted_before_it_runs():
    machine = lambda: unpack(packed(loop(2**63 - 1, "always"))).machine()  # noqa: E731
    with pytest.raises(nvdla.FormatError, match=r"host part 0: node b \(Add\): too much work"):
        machine()


def test_a_loop_without_end_ends_at_the_limit_of_processor_time(monkeypatch):
    monkeypatch.setattr(isolation, "LIMITS", replace(isolation.LIMITS, seconds=2))
    machine = unpack(packed(loop(2**63 - 1, "computed"))).machine()
    with pytest.raises(nvdla.FormatError, match=r"host part 0: too much work: must take at most 2 seconds"):
        machine.run(np.zeros(X["x"], np.float32))


def test_a_crash_in_a_host_part_is_one_error():
    part = loop(1, "always")
    del part.graph.node[:]
    cast = helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64)
    part.graph.node.extend([cast, node("Add", "i least", "j"), node("Div", "j minus", "k")])
    part.graph.node.append(helper.make_node("Cast", ["k"], ["y"], to=TensorProto.FLOAT))
    for name, number in (("least", np.iinfo(np.int64).min), ("minus", -1)):
        part.graph.initializer.append(numpy_helper.from_array(np.full(1, number), name))
    machine = unpack(packed(part)).machine()
    for _ in range(2):
        with pytest.raises(nvdla.FormatError, match=r"host part 0: "):
            machine.run(np.zeros(X["x"], np.float32))


def test_functions_of_a_host_part_are_counted():
    part = calls(6)
    with pytest.raises(nvdla.FormatError, match=r"host part 0: nodes .local functions expanded"):
        unpack(packed(part)).machine()


# ---- trusted models, processes


def test_a_trusted_model_is_read_in_this_process():
    found = read(classifier(np.random.default_rng(1)), trusted=True)
    assert found.worker is None
    assert (
        nvdla.compile(classifier(np.random.default_rng(1)), "nv_full", "fp16", trusted=True).imported.model.worker
        is None
    )


@pytest.mark.parametrize("command", ["compare", "evaluate a package"])
def test_trusted_commands_start_no_process_for_models(command, tmp_path, monkeypatch, capsys):
    """With the option they print what they print without it."""
    net, x = [node("Conv", "x w", "c"), node("Relu", "c", "y")], {"x": (1, 3, 8, 8)}
    net = model(net, x, {"y": (1, 4, 8, 8)}, {"w": np.random.default_rng(2).normal(size=(4, 3, 1, 1)).astype("f4")})
    (tmp_path / "m.onnx").write_bytes(net.SerializeToString())
    nvdla.compile(net, "nv_full", "fp16").save(tmp_path / "m.nvdla")
    classes = classifier(np.random.default_rng(1))
    nvdla.compile(classes, "nv_full", "fp16").save(tmp_path / "p.nvpkg")
    image = np.random.default_rng(3).normal(size=(2, 3, 12, 12)).astype("f4")
    np.savez(tmp_path / "e.npz", x=image, y=[0, 1])
    np.save(tmp_path / "i.npy", image[0, :, :8, :8])
    words = {
        "compare": ["compare", "m.nvdla", "--input", "i.npy", "--onnx", "m.onnx"],
        "evaluate a package": ["evaluate", "p.nvpkg", "e.npz", "--workers", "1"],
    }[command]
    monkeypatch.chdir(tmp_path)
    started, begin, printed = tmp_path / "started", ModelWorker._begin, []
    monkeypatch.setattr(ModelWorker, "_begin", lambda worker: started.touch() or begin(worker))
    for option in ([], ["--trusted"]):
        assert main([*words, *option]) == 0
        printed.append(capsys.readouterr().out)
        assert started.exists() == (not option)
        started.unlink(missing_ok=True)
    assert printed[0] == printed[1]


def test_the_float_model_of_a_trusted_evaluation_runs_in_the_worker_itself(tmp_path, monkeypatch):
    net = model([node("Relu", "x", "y")], {"x": (1, 3, 4, 4)}, {"y": (1, 3, 4, 4)})
    (tmp_path / "m.onnx").write_bytes(net.SerializeToString())
    nvdla.compile(net, "nv_full", "fp16").save(tmp_path / "m.nvdla")
    np.savez(tmp_path / "d.npz", x=np.ones((2, 3, 4, 4), np.float32), y=[0, 1])
    started, begin = [], ModelWorker._begin
    monkeypatch.setattr(ModelWorker, "_begin", lambda worker: started.append(1) or begin(worker))
    found = []
    for trusted in (False, True):
        source, against = open_source(str(tmp_path / "d.npz")), str(tmp_path / "m.onnx")
        table = Evaluation(str(tmp_path / "m.nvdla"), source, against=against, trusted=trusted)
        found.append(table.open()(list(table.tasks())))
        assert len(started) == 1
    assert found[0] == found[1] and all("error" not in record for record in found[0])


def test_both_ways_give_the_same_bytes():
    net = classifier(np.random.default_rng(5))
    made = [nvdla.compile(net, "nv_full", "fp16", trusted=trusted).package for trusted in (False, True)]
    assert made[0] == made[1]


def test_relative_paths_are_those_of_the_caller(tmp_path, monkeypatch):
    read(classifier(np.random.default_rng(1)))  # the server runs already, elsewhere
    (tmp_path / "m.onnx").write_bytes(classifier(np.random.default_rng(1)).SerializeToString())
    monkeypatch.chdir(tmp_path)
    assert read("m.onnx").name == "m"
    with pytest.raises(nvdla.FormatError, match=r"model none.onnx cannot be read: No such file"):
        read("none.onnx")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_no_process_outlives_its_parent(tmp_path):
    """Neither the server nor a worker in the middle of a run, also when the parent is killed."""
    path = tmp_path / "p.nvpkg"
    path.write_bytes(packed(loop(2**63 - 1, "computed")))
    code = (
        "import sys, numpy as np; from nvdla.compiler.frontend.package import unpack\n"
        "from nvdla.compiler.frontend import isolation\n"
        "machine = unpack(sys.argv[1]).machine(); print(isolation._server.process.pid, flush=True)\n"
        f"machine.run(np.zeros({X['x']}, np.float32))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)
    server = int(parent.stdout.readline())
    deadline = time.monotonic() + 60
    while not (workers := children(server)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while any(map(alive, (server, *workers))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, (server, *workers)))


def children(process):
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_ends_with_its_model():
    found = read(classifier(np.random.default_rng(1)))
    server = isolation._server.process.pid
    before = set(children(server))
    found.worker.close()
    deadline = time.monotonic() + 30
    while set(children(server)) >= before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(children(server)) < len(before)


def test_modules_of_the_current_directory_are_not_imported(tmp_path):
    (tmp_path / "onnx.py").write_text("open('planted', 'w')")
    (tmp_path / "json.py").write_text("open('planted', 'w')")
    (tmp_path / "m.onnx").write_bytes(classifier(np.random.default_rng(1)).SerializeToString())
    nvdla_command = Path(sys.executable).with_name("nvdla")
    command = [nvdla_command] if nvdla_command.exists() else [sys.executable, "-P", "-m", "nvdla"]
    done = subprocess.run([*command, "compile", "m.onnx", "--check", "--config", "nv_full", "--precision", "fp16"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=120, env=os.environ)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "planted").exists()


# ---- external data


def test_external_data_that_is_shared_too_often_is_refused(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(1 << 16))
    net = model([node("Relu", "x", "y")], X, {"y": X["x"]})
    for number in range(65):
        tensor = net.graph.initializer.add(name=f"t{number}", data_type=TensorProto.FLOAT, dims=[1 << 14])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
    (tmp_path / "m.onnx").write_bytes(net.SerializeToString())
    with pytest.raises(nvdla.FormatError, match=r"share the bytes of w\.bin: must be at most 64 times the file"):
        read(tmp_path / "m.onnx")
    del net.graph.initializer[-1]
    (tmp_path / "m.onnx").write_bytes(net.SerializeToString())
    assert read(tmp_path / "m.onnx").outputs == ["y"]


def outside(tmp_path):
    (tmp_path / "w.bin").write_bytes(np.ones((4, 3, 3, 3), np.float32).tobytes())
    net = model([node("Conv", "x w", "y")], X, {"y": (1, 4, 6, 6)})
    tensor = net.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[4, 3, 3, 3])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../w.bin")
    path = tmp_path / "inner" / "m.onnx"
    path.parent.mkdir()
    path.write_bytes(net.SerializeToString())
    return path


def test_a_comparison_reads_external_data_in_the_model_s_directory_alone(tmp_path):
    from nvdla.checks.compare.float_models import onnx_tensors
    from nvdla.experiments.evaluation.table import _float_model

    path, given = outside(tmp_path), np.ones(X["x"], np.float32)
    for attempt in (
        lambda: onnx_tensors(path, {"x": given}),
        lambda: _float_model(str(path), False),
        lambda: read(path),
    ):
        with pytest.raises(
            nvdla.FormatError, match=r"external data '\.\./w\.bin' must be a file in the model's folder"
        ):
            attempt()
    inside = path.with_name("w.bin")
    inside.write_bytes((tmp_path / "w.bin").read_bytes())
    net = onnx.load(path, load_external_data=False)
    net.graph.initializer[0].external_data[0].value = "w.bin"
    path.write_bytes(net.SerializeToString())
    assert onnx_tensors(path, {"x": given})[0]["y"].ravel()[0] == 27
    assert _float_model(str(path), False)(given)["y"].ravel()[0] == 27


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "BFLOAT16"])
def test_constants_of_every_type_come_back_from_the_worker(kind):
    """A type without a letter in numpy stopped the answer, and the caller waited for it."""
    zero = onnx.helper.make_tensor("zero", getattr(onnx.TensorProto, kind), [], [0.0])
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Cast", ["zero"], ["number"], to=onnx.TensorProto.FLOAT),
            onnx.helper.make_node("Add", ["x", "number"], ["y"]),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4])],
        [zero],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    assert read(model.SerializeToString()).outputs == ["y"]
