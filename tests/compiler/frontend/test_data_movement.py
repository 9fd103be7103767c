"""Operators that move or repeat elements, followed by constants for each element, give what onnxruntime gives."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.data_movement import LIMITS, TARGETS, judge

import nvdla
from nvdla.compiler.frontend.compiler import check
from nvdla.compiler.frontend.model import run_once
from tests.compiler.frontend.models import model, node

X = (1, 6, 4, 5)
TWICE = {
    "Tile channels": (node("Tile", "v r", "t"), {"r": [1, 2, 1, 1]}, (1, 12, 4, 5)),
    "Tile columns": (node("Tile", "v r", "t"), {"r": [1, 1, 1, 2]}, (1, 6, 4, 10)),
    "Expand": (node("Expand", "v r", "t"), {"r": [3, 6, 4, 5]}, (3, 6, 4, 5)),
    "Gather": (node("Gather", "v i", "t", axis=1), {"i": [2, 0, 2, 5, 5, 1, 0, 3]}, (1, 8, 4, 5)),
    "Resize": (
        node("Resize", "v none s", "t", mode="nearest", coordinate_transformation_mode="asymmetric"),
        {"none": np.zeros(0, "f4"), "s": np.array([1, 1, 2, 2], "f4")},
        (1, 6, 8, 10),
    ),
}
PARTNERS = {
    "Mul channels": (node("Mul", "t k", "y"), ("C",)),
    "Add positions": (node("Add", "t k", "y"), ("HW",)),
    "Sub elements": (node("Sub", "k t", "y"), ("CHW",)),
    "Max channels": (node("Max", "t k", "y"), ("C",)),
    "PRelu channels": (node("PRelu", "t k", "y"), ("C",)),
    "PRelu elements": (node("PRelu", "t k", "y"), ("CHW",)),
    "BatchNormalization": (node("BatchNormalization", "t k k2 k3 k4", "y"), ("c", "c", "c", "+c")),
}


def constant(rng, form, shape):
    """Numbers that differ from element to element along the dimensions that ``form`` names."""
    if form.endswith("c"):
        return rng.uniform(0.5, 1.5, shape[1]).astype("f4") if "+" in form else rng.normal(size=shape[1]).astype("f4")
    sizes = [size if dimension in form else 1 for dimension, size in zip("CHW", shape[1:], strict=True)]
    return rng.normal(size=sizes).astype("f4")


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("partner", PARTNERS)
@pytest.mark.parametrize("move", TWICE)
def test_each_repeat_of_an_element_has_its_own_constant(move, partner, precision):
    rng = np.random.default_rng(3)
    first, constants, shape = TWICE[move]
    last, forms = PARTNERS[partner]
    held = {name: np.asarray(array) for name, array in constants.items()}
    held |= {f"k{n + 1 if n else ''}": constant(rng, form, shape) for n, form in enumerate(forms)}
    held["w"] = rng.normal(size=(6, 6, 1, 1)).astype("f4")
    net = model([node("Conv", "x w", "v"), first, last], {"x": X}, {"y": shape}, held)
    samples = rng.normal(size=(4, *X[1:])).astype("f4")
    found = nvdla.compile(net, TARGETS[precision], precision, samples).run(samples[:1])["y"]
    exact = run_once(net, "net", {"x": samples[:1]})[0]
    assert np.square(found - exact).sum() < np.square(exact).sum() * 10 ** (-(LIMITS[precision] + 5) / 10)


def test_elements_that_a_value_leaves_out_are_computed_not_guessed():
    """Three channels of three, of which the first is in no place: its range is that of the network, on every run."""
    rng = np.random.default_rng(4)
    net = model(
        [node("Conv", "x w", "v"), node("Gather", "v i", "t", axis=1), node("Add", "t one", "y")],
        {"x": (1, 3, 4, 2)},
        {"y": (1, 3, 4, 2)},
        {"w": rng.normal(size=(3, 3, 1, 1)).astype("f4"), "i": np.array([1, 1, 2]), "one": np.ones(1, "f4")},
    )
    samples = rng.normal(size=(4, 3, 4, 2)).astype("f4")
    compiled = nvdla.compile(net, "nv_small", "int8", samples)
    added = compiled.report["accuracy"][-1]
    assert (
        added["scale"] * 127
        < 2 * np.abs(np.concatenate([run_once(net, "n", {"x": x[None]})[0] for x in samples])).max()
    )
    assert added["chain"] > LIMITS["int8"]


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_an_output_with_one_limit_has_the_range_of_its_numbers(op):
    rng = np.random.default_rng(5)
    limit = {"k": np.array([0.3 if op == "Max" else -0.3], "f4")}
    net = model([node(op, "x k", "y")], {"x": (1, 3, 4, 4)}, {"y": (1, 3, 4, 4)}, limit)
    samples = rng.normal(size=(4, 3, 4, 4)).astype("f4")
    found = nvdla.compile(net, "nv_small", "int8", samples).run(samples[:1])["y"]
    np.testing.assert_allclose(found, run_once(net, "net", {"x": samples[:1]})[0], atol=0.05)


def test_nodes_that_go_to_the_host_state_a_reason_of_their_own():
    """A cubic filter that reaches beyond the edge, and a transpose of a map that is too large to move."""
    scales = {"none": np.zeros(0, "f4"), "s": np.array([1, 1, 2, 2], "f4"), "w": np.ones((25, 25, 1, 1), "f4")}
    cubic = node("Resize", "x none s", "y", mode="cubic", coordinate_transformation_mode="align_corners")
    rows = check(model([cubic], {"x": (1, 8, 11, 12)}, {"y": (1, 8, 22, 24)}, scales))["nodes"]
    assert rows[0]["reason"] == "its filter reaches beyond one element of the edge"
    nodes = [node("Conv", "x w", "v"), node("Transpose", "v", "t", perm=[0, 2, 1, 3]), node("Conv", "t w", "y")]
    rows = check(model(nodes, {"x": (1, 25, 25, 40)}, {"y": (1, 25, 25, 40)}, scales))["nodes"]
    assert rows[-1]["reason"] == "it needs a transpose (25x25x40 to another order), which NVDLA cannot do"
    nodes = [node("Conv", "x w", "v"), node("Reshape", "v s", "t"), node("Conv", "t w", "y")]
    scales["s"] = np.array([1, 25, 5, 200])
    rows = check(model(nodes, {"x": (1, 25, 25, 40)}, {"y": (1, 25, 5, 200)}, scales))["nodes"]
    assert rows[-1]["reason"] == "it needs rows of another length (25x25x40 to 25x5x200), which NVDLA cannot do"


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize(
    ("scale", "first", "last"), [(2, (0, 0), (7, 9)), (2, (1, 3), (8, 10)), (3, (2, 1), (4, 14)), (4, (3, 2), (15, 19))]
)
def test_an_enlarged_map_may_be_cut_within_the_copies_of_a_row(scale, first, last, precision):
    """As a U-Net cuts it: its first and last rows and columns are repeated less often than the others."""
    rng = np.random.default_rng(8)
    floor = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    held = {"none": np.zeros(0, "f4"), "s": np.array([1, 1, scale, scale], "f4"), "axes": np.array([2, 3])}
    held |= {"first": np.array(first), "last": np.array(last), "w": rng.normal(size=(6, 6, 1, 1)).astype("f4")}
    nodes = [
        node("Conv", "x w", "v"),
        node("Resize", "v none s", "u", **floor),
        node("Slice", "u first last axes", "t"),
        node("Conv", "t w", "y"),
    ]
    shape = (1, 6, last[0] - first[0], last[1] - first[1])
    net, samples = model(nodes, {"x": X}, {"y": shape}, held), rng.normal(size=(4, *X[1:])).astype("f4")
    compiled = nvdla.compile(net, TARGETS[precision], precision, samples, host=False)
    found, exact = compiled.run(samples[:1])["y"], run_once(net, "net", {"x": samples[:1]})[0]
    assert np.square(found - exact).sum() < np.square(exact).sum() * 10 ** (-(LIMITS[precision] + 3) / 10)


def test_rows_in_unequal_steps_are_the_reason_for_the_host():
    rng = np.random.default_rng(9)
    held = {"i": np.array([0, 1, 3, 9, 11, 12, 17, 19, 22]), "w": rng.normal(size=(6, 6, 1, 1)).astype("f4")}
    nodes = [node("Conv", "x w", "v"), node("Gather", "v i", "t", axis=2), node("Conv", "t w", "y")]
    rows = check(model(nodes, {"x": (1, 6, 40, 40)}, {"y": (1, 6, 9, 40)}, held))["nodes"]
    assert rows[-1]["reason"] == "it needs rows or columns in unequal steps (6x40x40 to 6x9x40), which NVDLA cannot do"


@pytest.mark.parametrize("precision", LIMITS)
def test_random_networks_that_move_elements(precision):
    assert [fault for seed in range(24) if (fault := judge(seed, precision).fault(precision))] == []


@pytest.mark.slow
@pytest.mark.parametrize("precision", LIMITS)
def test_two_thousand_random_networks_that_move_elements(precision):
    assert [fault for seed in range(2000) if (fault := judge(seed, precision).fault(precision))] == []


@pytest.mark.parametrize("size", [(32, 48), (37, 50)])
@pytest.mark.parametrize("groups", [1, 3])
def test_a_patch_embedding_is_a_1x1_convolution_of_the_input_in_another_order(size, groups):
    rng = np.random.default_rng(2)
    shape = (1, 3, *size)
    held = {"w": rng.normal(size=(6, 3 // groups, 16, 12)).astype("f4"), "b": rng.normal(size=6).astype("f4")}
    conv = node("Conv", "x w b", "y", strides=[16, 12], group=groups)
    net = model([conv], {"x": shape}, {"y": (1, 6, 2, 4)}, held)
    samples = rng.normal(size=(4, *shape[1:])).astype("f4")
    compiled = nvdla.compile(net, "nv_small", "int8", samples)
    assert compiled.report["cuts"] == 0
    exact = run_once(net, "net", {"x": samples[:1]})[0]
    noise = np.sum((compiled.run(samples[:1])["y"] - exact) ** 2) / np.sum(exact**2)
    assert noise < 1e-3


def test_a_constant_joined_with_the_input_is_calibrated_with_several_samples():
    rng = np.random.default_rng(6)
    held = {"k": rng.normal(size=(1, 6, 4, 2)), "w": rng.normal(size=(5, 6, 3, 3))}
    nodes = [node("Concat", "k x", "c", axis=3), node("Conv", "c w", "y")]
    net = model(nodes, {"x": X}, {"y": (1, 5, 2, 5)}, {name: array.astype("f4") for name, array in held.items()})
    samples = rng.normal(size=(6, *X[1:])).astype("f4")
    found = nvdla.compile(net, "nv_small", "int8", samples).run(samples[:1])["y"]
    exact = run_once(net, "net", {"x": samples[:1]})[0]
    assert np.square(exact - found).mean() < 1e-2 * np.square(exact).mean()


def _block(kind, x, y, held, rng, channels=64):
    """A block with a layer normalization and two matrices, in the form of ConvNeXt or of a transformer."""
    held |= {f"{y}.w1": rng.normal(size=(channels, 32)).astype("f4") / 8, f"{y}.g": np.ones(channels, "f4")}
    held |= {f"{y}.w2": rng.normal(size=(32, channels)).astype("f4") / 6}
    nodes, source = [], x
    if kind == "ConvNeXt":
        held[f"{y}.d"] = rng.normal(size=(channels, 1, 3, 3)).astype("f4") / 3
        nodes = [node("Conv", f"{x} {y}.d", f"{y}.c", group=channels, pads=[1] * 4)]
        nodes += [node("Transpose", f"{y}.c", f"{y}.t", perm=[0, 2, 3, 1])]
        source = f"{y}.t"
    result = f"{y}.m" if kind == "ConvNeXt" else f"{y}.b"
    nodes += [node("LayerNormalization", f"{source} {y}.g", f"{y}.n"), node("MatMul", f"{y}.n {y}.w1", f"{y}.h")]
    nodes += [node("Relu", f"{y}.h", f"{y}.r"), node("MatMul", f"{y}.r {y}.w2", result)]
    if kind == "ConvNeXt":
        nodes += [node("Transpose", f"{y}.m", f"{y}.b", perm=[0, 3, 1, 2])]
    return [*nodes, node("Add", f"{x} {y}.b", y)]


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize(("kind", "shape"), [("ConvNeXt", (1, 64, 14, 14)), ("transformer", (1, 60, 64))])
def test_a_residual_is_added_in_the_order_of_the_matrices(kind, shape, precision):
    """Nothing leaves the accelerator."""
    rng = np.random.default_rng(5)
    held = {}
    nodes = [*_block(kind, "x", "v", held, rng), *_block(kind, "v", "y", held, rng)]
    net = model(nodes, {"x": shape}, {"y": shape}, held)
    samples = rng.normal(size=(8, *shape[1:])).astype("f4")
    compiled = nvdla.compile(net, TARGETS[precision], precision, samples)
    found, exact = compiled.run(samples[:1])["y"], run_once(net, "net", {"x": samples[:1]})[0]
    assert "host" not in {row.placement for row in compiled.imported.nodes}
    assert compiled.report["cuts"] == 0
    assert np.square(found - exact).sum() < np.square(exact).sum() * 10 ** (-(LIMITS[precision] + 5) / 10)


SIDE, WINDOW, CHANNELS = 8, 4, 16
FULL = (1, SIDE, SIDE, CHANNELS)


def _roll(x, y, shift, held):
    """Rows and columns shifted around: two slices and a Concat for each, as torch.roll is exported."""
    nodes = []
    for source, target, axis in ((x, f"{y}.rows", 1), (f"{y}.rows", y, 2)):
        held |= {f"{y}.s": np.array([shift % SIDE]), "zero": np.array([0]), "all": np.array([SIDE])}
        held[f"axis{axis}"] = np.array([axis])
        nodes.append(node("Slice", f"{source} {y}.s all axis{axis}", f"{target}.first"))
        nodes.append(node("Slice", f"{source} zero {y}.s axis{axis}", f"{target}.last"))
        nodes.append(node("Concat", f"{target}.first {target}.last", target, axis=axis))
    return nodes


def _windows(x, y, held):
    """Windows of WINDOW x WINDOW pixels, each a matrix whose rows are pixels."""
    held |= {"cut": np.array([1, SIDE // WINDOW, WINDOW, SIDE // WINDOW, WINDOW, CHANNELS])}
    held |= {"windows": np.array([(SIDE // WINDOW) ** 2, WINDOW**2, CHANNELS])}
    nodes = [node("Reshape", f"{x} cut", f"{y}.1"), node("Transpose", f"{y}.1", f"{y}.2", perm=[0, 1, 3, 2, 4, 5])]
    return [*nodes, node("Reshape", f"{y}.2 windows", y)]


def _picture(x, y, held):
    """The inverse of _windows."""
    held |= {"merge": np.array([1, SIDE // WINDOW, SIDE // WINDOW, WINDOW, WINDOW, CHANNELS]), "full": np.array(FULL)}
    nodes = [node("Reshape", f"{x} merge", f"{y}.1"), node("Transpose", f"{y}.1", f"{y}.2", perm=[0, 1, 3, 2, 4, 5])]
    return [*nodes, node("Reshape", f"{y}.2 full", y)]


def _matrices(rng, count):
    return {f"w{n}": rng.normal(size=(CHANNELS, CHANNELS)).astype("f4") / 4 for n in range(count)}


def _accelerated(nodes, held, precision, shape=FULL, out=FULL):
    """Compile, check that nothing runs on the host and the result is near onnxruntime's, and return the layers."""
    net = model(nodes, {"x": shape}, {"y": out}, held)
    samples = np.random.default_rng(8).normal(size=(4, *shape[1:])).astype("f4")
    compiled = nvdla.compile(net, TARGETS[precision], precision, samples)
    assert {row.placement for row in compiled.nodes} <= {"accelerator", "cpu", "folded"}
    found, exact = compiled.run(samples[:1])["y"], run_once(net, "net", {"x": samples[:1]})[0]
    assert np.square(found - exact).sum() < np.square(exact).sum() * 10 ** (-(LIMITS[precision] + 5) / 10)
    return [layer.kind for layer in compiled.imported.networks[0].layers if layer.kind not in ("input", "constant")]


@pytest.mark.parametrize("precision", LIMITS)
def test_matrices_take_the_rows_of_shifted_windows_where_they_are(precision):
    """Rolls and windows only name other rows: no layer moves elements, and both sides of a sum have one order."""
    rng = np.random.default_rng(5)
    held = _matrices(rng, 4) | {"k": rng.normal(size=(1, WINDOW**2, CHANNELS)).astype("f4")}
    nodes = [node("MatMul", "x w0", "v"), *_roll("v", "r", 2, held), *_windows("r", "u", held)]
    nodes += [node("MatMul", "u w1", "a"), node("Add", "a k", "b"), node("Relu", "b", "c"), node("MatMul", "c w2", "d")]
    nodes += [
        *_picture("d", "e", held),
        *_roll("e", "f", -2, held),
        node("Add", "v f", "g"),
        node("MatMul", "g w3", "y"),
    ]
    kinds = _accelerated(nodes, held, precision)
    assert sorted(kinds) == ["convolution"] * 4 + ["elementwise"] * 2 + ["relu"]


@pytest.mark.parametrize("precision", LIMITS)
def test_an_offset_for_each_row_follows_the_rows(precision):
    rng = np.random.default_rng(6)
    held = _matrices(rng, 2) | {"k": rng.normal(size=(SIDE**2, CHANNELS)).astype("f4")}
    held["rows"] = np.array([SIDE**2, CHANNELS])
    nodes = [node("MatMul", "x w0", "v"), *_roll("v", "r", 3, held), node("Reshape", "r rows", "m")]
    nodes += [node("Gemm", "m w1 k", "y")]
    assert _accelerated(nodes, held, precision, out=(SIDE**2, CHANNELS)) == ["convolution"] * 2 + ["elementwise"]


@pytest.mark.parametrize("precision", LIMITS)
def test_each_matrix_of_a_batch_has_its_own_order_of_rows(precision):
    """The rows of the second matrix are reversed."""
    rng, shape = np.random.default_rng(7), (1, 2, 12, CHANNELS)
    held = {f"w{n}": rng.normal(size=(2, CHANNELS, CHANNELS)).astype("f4") / 4 for n in range(2)}
    held |= {"rows": np.array([1, 24, CHANNELS]), "order": np.r_[:12, 23:11:-1], "batch": np.array(shape)}
    nodes = [node("MatMul", "x w0", "v"), node("Reshape", "v rows", "r"), node("Gather", "r order", "g", axis=1)]
    nodes += [node("Reshape", "g batch", "b"), node("MatMul", "b w1", "y")]
    assert _accelerated(nodes, held, precision, shape, shape) == ["convolution"] * 2


@pytest.mark.parametrize("precision", LIMITS)
def test_a_roll_before_a_convolution_is_copied_in_pieces(precision):
    """A convolution needs its rows in the order of the picture: four pieces are cut out and joined."""
    rng = np.random.default_rng(9)
    held = _matrices(rng, 1) | {"k": rng.normal(size=(CHANNELS, CHANNELS, 3, 3)).astype("f4") / 12}
    nodes = [node("MatMul", "x w0", "v"), *_roll("v", "r", 3, held), node("Transpose", "r", "t", perm=[0, 3, 1, 2])]
    nodes += [node("Conv", "t k", "y", pads=[1, 1, 1, 1])]
    kinds = _accelerated(nodes, held, precision, out=(1, CHANNELS, SIDE, SIDE))
    assert sorted(kinds) == ["convolution"] * 2 + ["join"] * 3 + ["slice"] * 4


def test_a_roll_of_the_input_is_the_order_in_which_it_is_bound():
    held = _matrices(np.random.default_rng(10), 1)
    nodes = [*_roll("x", "r", 3, held), *_windows("r", "u", held), node("MatMul", "u w0", "y")]
    assert _accelerated(nodes, held, "int8", out=((SIDE // WINDOW) ** 2, WINDOW**2, CHANNELS)) == ["convolution"]


def test_a_border_of_no_width_needs_no_operation():
    held = _matrices(np.random.default_rng(11), 2) | {"none": np.zeros(8, np.int64)}
    nodes = [node("MatMul", "x w0", "v"), node("Pad", "v none", "p"), node("MatMul", "p w1", "y")]
    assert _accelerated(nodes, held, "int8") == ["convolution"] * 2


def _window_block(x, y, shift, held, rng):
    """A block of a Swin transformer: attention within shifted windows, and two layers for each pixel."""
    held |= {f"{y}.{name}": weight for name, weight in zip("qkvoab", _matrices(rng, 6).values(), strict=True)}
    held |= {"one": np.ones(CHANNELS, "f4"), "none": np.zeros(CHANNELS, "f4")}
    nodes = [node("LayerNormalization", f"{x} one none", f"{y}.n")]
    nodes += [*_roll(f"{y}.n", f"{y}.r", shift, held), *_windows(f"{y}.r", f"{y}.u", held)]
    nodes += [node("MatMul", f"{y}.u {y}.{name}", f"{y}.{name}1") for name in "qkv"]
    nodes += [node("Transpose", f"{y}.k1", f"{y}.k2", perm=[0, 2, 1]), node("MatMul", f"{y}.q1 {y}.k2", f"{y}.s1")]
    nodes += [node("Softmax", f"{y}.s1", f"{y}.s2"), node("MatMul", f"{y}.s2 {y}.v1", f"{y}.s3")]
    nodes += [node("MatMul", f"{y}.s3 {y}.o", f"{y}.s4"), *_picture(f"{y}.s4", f"{y}.e", held)]
    nodes += [*_roll(f"{y}.e", f"{y}.f", -shift, held), node("Add", f"{x} {y}.f", f"{y}.g")]
    nodes += [node("LayerNormalization", f"{y}.g one none", f"{y}.h"), node("MatMul", f"{y}.h {y}.a", f"{y}.i")]
    nodes += [node("Relu", f"{y}.i", f"{y}.j"), node("MatMul", f"{y}.j {y}.b", f"{y}.l")]
    return [*nodes, node("Add", f"{y}.g {y}.l", y)]


def test_each_attention_within_windows_leaves_the_accelerator_once():
    """What a window, a shift and a residual do with rows needs neither the host nor a copy."""
    rng = np.random.default_rng(12)
    held = {}
    nodes = [*_window_block("x", "v", 2, held, rng), *_window_block("v", "y", 3, held, rng)]
    net = model(nodes, {"x": FULL}, {"y": FULL}, held)
    samples = rng.normal(size=(8, *FULL[1:])).astype("f4")
    compiled = nvdla.compile(net, "nv_large", "int8", samples)
    on_host = [row.op for row in compiled.nodes if row.placement == "host"]
    assert compiled.report["cuts"] == 4 and on_host == ["MatMul", "Softmax", "MatMul"] * 2
    assert not {"slice", "join", "concat"} & {layer.kind for net in compiled.imported.networks for layer in net.layers}
    found, exact = compiled.run(samples[:1])["y"], run_once(net, "net", {"x": samples[:1]})[0]
    assert np.square(found - exact).sum() < np.square(exact).sum() * 10**-2.5


@pytest.mark.parametrize("keep", [1, 2])
def test_a_map_of_more_elements_than_a_surface_has_channels_is_flattened_on_the_host(keep):
    """Maps in the order of TFLite (channels last) have 27648 elements, and no surface has that many channels."""
    rng = np.random.default_rng(9)
    weights = {"v": rng.normal(size=(27648, 3)).astype("f4") / 99, "flat": np.array([1, 27648])}
    nodes = [node("Reshape", "x flat", "f"), node("Gemm", "f v", "g"), node("Relu", "g", "y")]
    net = model(nodes[: keep + 1], {"x": (1, 96, 96, 3)}, {"y" if keep == 2 else "g": (1, 3)}, weights)
    image = rng.uniform(-1, 1, (1, 96, 96, 3)).astype("f4")
    compiled = nvdla.compile(net, "nv_small", "int8", image)
    reasons = {row.op: row.reason for row in compiled.nodes if row.placement == "host"}
    assert reasons == {row["op"]: row["reason"] for row in check(net)["nodes"] if row["placement"] == "host"}
    assert "shape 27648x1x1 must be (channels, height, width), each 1 to 8192" in reasons["Reshape"]
    exact = run_once(net, "net", {"x": image})[0]
    np.testing.assert_allclose(next(iter(compiled.run(image).values())), exact, atol=0.02)


AFTER_PAD = {
    "result": [],
    "Relu": [node("Relu", "p", "y")],
    "Sigmoid": [node("Sigmoid", "p", "y")],
    "Add": [node("Add", "p a", "y")],
    "MatMul": [node("MatMul", "p m", "y")],
    "Transpose, Conv": [node("Transpose", "p", "t", perm=[0, 2, 1]), node("Conv", "t w1", "y")],
    "Unsqueeze, Transpose, Conv": [
        node("Unsqueeze", "p one", "u"),
        node("Transpose", "u", "t", perm=[0, 3, 1, 2]),
        node("Conv", "t w2", "y", pads=[0, 1, 0, 0]),
    ],
    "Transpose, MaxPool": [
        node("Transpose", "p", "t", perm=[0, 2, 1]),
        node("MaxPool", "t", "y", kernel_shape=[3], strides=[1]),
    ],
    "Conv": [node("Conv", "p w3", "y")],
}
AMOUNTS = {
    "before": [0, 2, 0, 0, 0, 0],
    "both": [0, 1, 0, 0, 2, 0],
    "last": [0, 0, 1, 0, 0, 0],
    "all": [0, 1, 2, 0, 0, 1],
}


@pytest.mark.parametrize("number", [0.0, 0.5])
@pytest.mark.parametrize("is_inner", [False, True])
@pytest.mark.parametrize("amounts", AMOUNTS)
@pytest.mark.parametrize("after", AFTER_PAD)
def test_a_border_around_sequences_gives_what_onnxruntime_gives(after, amounts, is_inner, number):
    """Sequences with channels last (1, steps, channels), as TensorFlow has them: causal convolutions."""
    rng, pads = np.random.default_rng(5), AMOUNTS[amounts]
    length, width = 9 + pads[1] + pads[4], 4 + pads[2] + pads[5]
    nodes = [node("Pad", "v pads number", "p")]
    if is_inner:
        nodes = [node("Conv", "x w", "c"), node("Transpose", "c", "v", perm=[0, 2, 1]), *nodes]
    nodes += AFTER_PAD[after] or [node("Identity", "p", "y")]
    sizes = {"w": (4, 4, 3), "a": (1, length, width), "m": (width, 3), "w1": (5, width, 3)}
    sizes |= {"w2": (5, width, 1, 3), "w3": (5, length, 3)}
    constants = {name: rng.normal(size=size).astype("f4") for name, size in sizes.items()}
    constants |= {"pads": np.array(pads), "number": np.float32(number), "one": np.array([1])}
    used = {name for one in nodes for name in one.input}
    held = {name: array for name, array in constants.items() if name in used}
    shape = (1, 4, 11) if is_inner else (1, 9, 4)
    net = model(nodes, {"x" if is_inner else "v": shape}, {"y": None}, held)
    sample = rng.normal(size=shape).astype("f4")
    exact = run_once(net, "net", {net.graph.input[0].name: sample})[0]
    compiled = nvdla.compile(net, "nv_full", "fp16")
    found = compiled.run(sample)["y"]
    assert np.abs(found - exact).max() < 0.01 * np.abs(exact).max()


@pytest.mark.parametrize("is_inner", [False, True])
def test_a_causal_convolution_of_a_sequence_is_one_operation(is_inner, tmp_path):
    """Its border is that of the convolution, and no element moves."""
    rng = np.random.default_rng(6)
    nodes = [node("Pad", "v pads", "p"), node("Transpose", "p", "t", perm=[0, 2, 1]), node("Conv", "t w", "y")]
    if is_inner:
        nodes = [node("Transpose", "x", "s", perm=[0, 2, 1]), node("Conv", "s w", "c"),
                 node("Transpose", "c", "v", perm=[0, 2, 1]), *nodes]  # fmt: skip
    constants = {"pads": np.array([0, 2, 0, 0, 0, 0]), "w": rng.normal(size=(4, 4, 3)).astype("f4")}
    net = model(nodes, {"x" if is_inner else "v": (1, 16, 4)}, {"y": None}, constants)
    nvdla.compile(net, "nv_full", "fp16").save(tmp_path / "net.nvdla")
    kinds = [operation["type"] for operation in nvdla.load(tmp_path / "net.nvdla").operations]
    assert kinds == ["CONV", "SDP"] * (2 if is_inner else 1)
