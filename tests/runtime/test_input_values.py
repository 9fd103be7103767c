"""Inputs and outputs as people hold them: pictures, real numbers, several images; and what notebooks and Dask need."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nvdla
from nvdla.checks.compare import compare
from nvdla.program.program import Program
from nvdla.tensors.inputs import Preprocessing
from nvdla.tensors.real import ScaleMissing, to_elements

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
LENET = SAMPLES / "lenet.loadable"
DIGITS = [str(SAMPLES / f"digit{number}.pgm") for number in (7, 3, 1)]
HOSTILE = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture(scope="module")
def runtime():
    return nvdla.Runtime(LENET)


@pytest.fixture
def nameless(tmp_path):
    """The network without its layer file."""
    return shutil.copy(LENET, tmp_path / "net.nvdla")


def pixels(path: str) -> np.ndarray:
    return np.asarray(Image.open(path))


@pytest.mark.parametrize("form", ["pil", "rows", "rows_and_channels"])
def test_a_picture_in_memory_gives_the_bytes_of_its_file(runtime, form):
    picture = Image.open(DIGITS[0])
    given = {"pil": picture, "rows": pixels(DIGITS[0]), "rows_and_channels": pixels(DIGITS[0])[..., None]}[form]
    assert runtime.surfaces(given) == runtime.surfaces(DIGITS[0])


def test_colors_of_a_picture_in_memory_have_the_order_of_its_file():
    colors = nvdla.Runtime(SAMPLES / "color_digits.loadable")
    path = SAMPLES / "color_digit4.ppm"
    for given in (Image.open(path), pixels(str(path))):
        assert colors.surfaces(given) == colors.surfaces(path)


def test_the_model_s_preprocessing_takes_files_and_pictures_alike(nameless):
    document = json.loads(Path(f"{LENET}.layers.json").read_text())
    document["preprocessing"] = {"mean": [10.0], "scale": [2.0], "color": "rgb", "layout": "nchw", "resize": False}
    Path(f"{nameless}.layers.json").write_text(json.dumps(document))
    runtime = nvdla.Runtime(nameless)
    scale = document["tensors"]["data"]["scale"]
    wanted = to_elements((pixels(DIGITS[0]).astype(np.float32) - 10) * 2, scale, np.dtype(np.int8))
    for given in (DIGITS[0], Image.open(DIGITS[0]), pixels(DIGITS[0])):
        assert runtime.surfaces(given) == [runtime.pack(0, wanted[None, None])]


@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 1), (1, 28, 28), (1, 28, 28, 1), (1, 1, 28, 28)])
def test_uint8_arrays_are_pixels_where_the_layer_file_states_the_conversion(runtime, shape, tmp_path):
    """In a file as in memory, whatever their values: 0 .. 127 are no elements."""
    for name, given in (("bright", pixels(DIGITS[0])), ("dark", pixels(DIGITS[0]) // 2)):
        Image.fromarray(given).save(tmp_path / f"{name}.png")
        np.save(tmp_path / f"{name}.npy", given.reshape(shape))
        preprocessing = Preprocessing(scale=(1.0,))  # those of the network, without the search for a digit
        wanted = runtime.surfaces(tmp_path / f"{name}.png", preprocessing)
        for value in (given.reshape(shape), tmp_path / f"{name}.npy"):
            assert runtime.surfaces(value, preprocessing) == wanted


def test_uint8_arrays_of_the_inputs_shape_are_elements_without_a_layer_file(nameless, tmp_path):
    runtime, given = nvdla.Runtime(nameless), pixels(DIGITS[0])[None, None] // 2
    np.save(tmp_path / "in.npy", given)
    for value in (given, tmp_path / "in.npy"):
        assert runtime.surfaces(value) == [runtime.pack(0, given.astype(np.int8))]
    with pytest.raises(nvdla.FormatError, match="must be whole numbers from -128 to 127, got uint8"):
        runtime.surfaces(given * 2)


@pytest.mark.parametrize("shape", [(28, 28, 3), (28, 28, 4)])
def test_a_gray_input_takes_the_gray_of_a_color_picture(nameless, shape):
    colors = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    gray = np.asarray(Image.fromarray(colors).convert("L"))
    runtime = nvdla.Runtime(nameless)
    assert runtime.surfaces(colors) == runtime.surfaces(gray)
    assert runtime.surfaces(colors) != runtime.surfaces(colors[..., 0])


@pytest.mark.parametrize("shape", [(27, 28), (27, 28, 3), (0, 28)])
def test_a_picture_that_does_not_fit_is_refused(nameless, shape):
    """Without a layer file, which would say that pictures of digits are converted."""
    with pytest.raises(nvdla.FormatError, match=r"the image: |image: must have pixels"):
        nvdla.Runtime(nameless).run(np.zeros(shape, np.uint8))


def test_real_numbers_are_quantized_with_the_scale_of_the_layer_file(runtime):
    scale = runtime.names.scale("data")
    values = np.linspace(-20, 300, 784, dtype=np.float32).reshape(1, 1, 28, 28)
    elements = np.clip(np.floor(values.astype(np.float64) / scale + 0.5), -127, 127).astype(np.int8)
    assert runtime.surfaces(values) == [runtime.pack(0, elements)]


def test_real_numbers_far_out_of_the_range_of_the_input_are_limited_with_a_warning(runtime):
    numbers = np.full(runtime.inputs[0].shape, 3000, np.float32)
    with pytest.warns(UserWarning, match=r"input data: some numbers are far out of its range .* Normalize arrays as"):
        runtime.run(numbers)


def test_real_numbers_that_are_all_lost_in_the_range_of_the_input_have_a_warning(runtime):
    numbers = np.random.default_rng(0).uniform(0, 1, runtime.inputs[0].shape).astype(np.float32)
    with pytest.warns(UserWarning, match=r"input data: all numbers are within one unit \(2.01\) of 0. Normalize"):
        runtime.run(numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.run(np.zeros_like(numbers))
        runtime.run(200 * numbers)


def test_outputs_come_back_as_real_numbers(runtime):
    elements, real = runtime.run(DIGITS[0])["prob"], runtime.run(DIGITS[0], real=True)["prob"]
    assert real.dtype == np.float32
    np.testing.assert_allclose(real, elements * runtime.names.scale("prob"), rtol=1e-6)


def test_halves_are_real_numbers_without_a_scale(tmp_path):
    runtime = nvdla.Runtime(shutil.copy(SAMPLES / "lenet_nv_full_fp16.loadable", tmp_path / "net.nvdla"))
    values = np.linspace(0, 1, 784, dtype=np.float64).reshape(1, 1, 28, 28)
    assert runtime.surfaces(values) == [runtime.pack(0, values.astype(np.float16))]
    assert runtime.run(values, real=True)["prob"].dtype == np.float32


@pytest.mark.parametrize("whole", [False, True], ids=["fractions", "whole numbers"])
def test_real_numbers_without_a_scale_are_refused_with_a_scale_that_would_hold_them(nameless, whole):
    values = np.full((1, 1, 28, 28), 127.0 if whole else 63.5)
    with pytest.raises(ScaleMissing, match=r"give Runtime\(\.\.\., scales=\{'data': ") as caught:
        nvdla.Runtime(nameless).run(values)
    assert caught.value.suggested == pytest.approx(values.max() / 127)
    with pytest.raises(ScaleMissing, match="output prob"):
        nvdla.Runtime(nameless, scales={"data": 1}).run(values, real=True)


def test_scales_given_by_the_caller_come_first(nameless):
    runtime = nvdla.Runtime(nameless, scales={"data": 0.5, "prob": 2})
    assert runtime.surfaces(np.full((1, 1, 28, 28), 10.0)) == [runtime.pack(0, np.full((1, 1, 28, 28), 20, np.int8))]
    assert np.array_equal(runtime.run(DIGITS[0], real=True)["prob"], 2.0 * runtime.run(DIGITS[0])["prob"])


@pytest.mark.parametrize("scales", [{"data": 0}, {"data": -1.0}, {"data": float("nan")}, {"data": "x"}, {1: 2}, 7])
def test_scales_that_are_none_are_refused(scales):
    with pytest.raises(nvdla.NvdlaError, match="scales"):
        nvdla.Runtime(LENET, scales=scales)


def test_nan_has_no_element(runtime):
    with pytest.raises(nvdla.FormatError, match="NaN"):
        runtime.run(np.full((1, 1, 28, 28), np.nan))


def test_a_list_and_a_batch_array_run_image_by_image(runtime):
    singles = np.concatenate([runtime.run(path)["prob"] for path in DIGITS])
    rows = np.stack([pixels(path) for path in DIGITS])
    elements = np.concatenate([runtime.inputs[0].layout.unpack(np.frombuffer(runtime.surfaces(p)[0], np.uint8))
                               for p in DIGITS])  # fmt: skip
    for given in (DIGITS, [Image.open(path) for path in DIGITS], rows[..., None], elements, {"data": DIGITS}):
        assert np.array_equal(runtime.run(given)["prob"], singles)


def test_run_many_takes_what_run_takes(runtime):
    singles = [runtime.run(path)["prob"] for path in DIGITS]
    rows = np.stack([pixels(path) for path in DIGITS])
    for given in (DIGITS, (each for each in DIGITS), rows, rows[..., None], [{"data": path} for path in DIGITS]):
        results = runtime.run_many(given)
        assert all(np.array_equal(each["prob"], single) for each, single in zip(results, singles, strict=True))
    assert runtime.run_many([DIGITS[0]], real=True)[0]["prob"].max() <= 1
    mixed = runtime.run_many([DIGITS[0], runtime.surfaces(DIGITS[0])])
    assert mixed[1] == runtime.run_raw(runtime.surfaces(DIGITS[0]))


def test_a_network_of_batches_takes_its_images_in_a_list():
    from nvdla.tensors.inputs import InputForm, per_run

    images = [np.full((1, 4, 4), number, np.int8) for number in range(4)]
    runs = per_run(images, (2, 1, 4, 4), "in")
    form = InputForm("in", (2, 1, 4, 4), np.dtype(np.int8))
    assert [form.elements(run)[:, 0, 0, 0].tolist() for run in runs] == [[0, 1], [2, 3]]
    with pytest.raises(nvdla.FormatError, match=r"images: must be a multiple of 2 \(batch of the network\), got 3"):
        per_run(images[:3], (2, 1, 4, 4), "in")


def test_representations_are_one_line(runtime):
    operations = Program.of(runtime.loadable).operations
    for value in (runtime, runtime.loadable, operations[0]):
        assert len(repr(value)) < 200 and "\n" not in repr(value)
    assert repr(operations[0]).startswith("<Operation CONV 0/0: 6 kernels 5x5x1")


def test_tables_for_notebooks_hold_no_markup_of_a_file(runtime):
    names = {"name": HOSTILE, "tensors": tuple(replace(each, name=HOSTILE) for each in runtime.loadable.tensors)}
    hostile = replace(runtime.loadable, **names)
    layers = {(0, 0): HOSTILE}
    shown = [hostile, nvdla.Runtime(hostile), Program.of(hostile, layers=layers).operations[0]]
    shown += [compare(np.zeros(3), np.ones(3))]
    for value in shown:
        page = value._repr_html_()
        assert page.startswith("<table>") and "<script" not in page and "\x1b" not in page
    assert all("&lt;script&gt;" in value._repr_html_() for value in shown[:3])


def test_a_comparison_for_a_notebook(runtime):
    from nvdla.checks.compare.comparison import compare_run
    from nvdla.checks.compare.runs import RunReference
    from nvdla.program.naming import Names

    surfaces, others = runtime.surfaces(DIGITS[0]), runtime.surfaces(DIGITS[1])
    names = Names({(0, 1): HOSTILE})
    reference = RunReference(nvdla.Runtime(LENET), others, names, runtime, surfaces, names)
    found = compare_run(runtime, surfaces, reference, names)
    assert "first" in repr(found) and "\n" not in repr(found)
    assert "different" in found._repr_html_() and "<script" not in found._repr_html_()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_loadable_is_pickled_whole_and_small(runtime, protocol):
    loadable = runtime.loadable
    data = pickle.dumps(loadable, protocol)
    again = pickle.loads(data)
    assert again == loadable and again.to_bytes() == loadable.to_bytes() and again.name == loadable.name
    if protocol >= 3:  # which have bytes
        assert len(data) < 1.1 * len(loadable.to_bytes())


def test_a_runtime_is_pickled_and_copied_at_any_time(runtime):
    """So that ``Pool.map(runtime.run, ...)`` works where processes are not forked, and joblib's do."""
    made = nvdla.Runtime(LENET, "nv_small", threads=1, scales={"data": 1.5})
    wanted = nvdla.Runtime(LENET, scales={"data": 1.5}).run(DIGITS[0])
    for _ in range(2):
        for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
            assert (again.config.name, again.config_reason, again.threads) == ("nv_small", "given, not detected", 1)
            assert again.names.scales == made.names.scales
            result = pickle.loads(pickle.dumps(again.run))(DIGITS[0])
            assert {name: value.tolist() for name, value in result.items()} == {
                name: value.tolist() for name, value in wanted.items()
            }
        made.run_many(DIGITS[:2])


def test_a_pickled_loadable_hands_its_bytes_over_without_a_copy(runtime):
    views: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(runtime.loadable, 5, buffer_callback=views.append)
    assert len(rest) < 16 << 10
    assert pickle.loads(rest, buffers=views) == runtime.loadable


def _tell(loadable: nvdla.Loadable) -> bytes:
    return loadable.to_bytes()


def test_joblib_and_dask_take_a_loadable_to_their_workers(runtime):
    joblib, protocol = pytest.importorskip("joblib"), pytest.importorskip("distributed.protocol")
    expected = runtime.loadable.to_bytes()
    assert joblib.Parallel(n_jobs=2)(joblib.delayed(_tell)(runtime.loadable) for _ in range(2)) == [expected] * 2
    header, frames = protocol.serialize(runtime.loadable)
    assert protocol.deserialize(header, frames).to_bytes() == expected
