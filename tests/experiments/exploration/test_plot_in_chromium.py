"""The plot of explore and datasheet in Chromium: by pointer, by keyboard, light and dark, narrow and wide."""

import itertools
import json

import pytest
from support.browser import Window, started

from nvdla.experiments.exploration import METRICS, page, plot_document


@pytest.fixture(scope="module")
def browser():
    driver, launched = started()
    yield launched
    launched.close()
    driver.stop()


def point(config, frames, area, energy, **others):
    """A record with these values and none that matters here for the others."""
    silicon = {"configuration": config, "basis": "fit", "refused": None} | dict.fromkeys(
        ("mm2_28nm", "mm2_16nm", "mw_peak", "mw_average"), area
    )
    known = {"config": config, "precision": "int8", "bandwidth": None, "latency": 100, "shared": False, "instances": 1}
    known |= {"split": "batch", "cycles": 10, "mac_use": 0.5, "buffer_use": 0.25, "bus_bytes": 8, "read_bytes": 1}
    known |= {"written_bytes": 1, "host_nodes": 0, "host_macs_percent": 0.0, "deadlock": None, "operations": 1}
    known |= {"unproven_operations": 0, "mac_units": 64, "memory_bytes": 5, "carve_out_bytes": 8, "silicon": silicon}
    return known | {"frames_per_second": frames, "microjoules": energy} | others


POINTS = [
    point("<b>small</b>", 10.0, 1.0, 9.0),
    point("medium", 40.0, 2.0, 5.0),
    point("bad", 20.0, 3.0, 8.0),
    point("large", 90.0, 5.0, 7.0, accuracy={"value": 0.75, "low": 0.7, "high": 0.8}),
    point("unknown", 95.0, None, 4.0),
]


@pytest.fixture
def window(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page({"points": POINTS}, "five points"), encoding="utf-8")
    opened = []

    def open_it(**named):
        opened.append(Window(browser, **named).open(path))
        return opened[-1]

    yield open_it
    for each in opened:
        assert each.errors == [] and each.foreign() == []
        each.close()


def labels(shown, only=""):
    """What the points of the plot say, in order."""
    return [each.get_attribute("aria-label") for each in shown.page.locator(f".point{only}").all()]


def choose(shown, name, key):
    shown.page.get_by_label(name, exact=True).select_option(key)


def test_the_front_is_of_the_points_that_no_other_beats(window):
    """Against a plain search, over every pair of metrics."""
    shown = window()
    data = plot_document(POINTS)
    more = {key: 1 if metric.more else -1 for key, metric in METRICS.items()}
    keys = [metric["key"] for metric in data["metrics"]]
    for x, y in itertools.permutations(keys, 2):
        choose(shown, "Horizontal", x)
        choose(shown, "Vertical", y)
        rated = [each for each in data["points"] if None not in (each["values"][x], each["values"][y])]
        goods = [(more[x] * each["values"][x], more[y] * each["values"][y]) for each in rated]
        best = [
            each["label"]
            for each, (a, b) in zip(rated, goods, strict=True)
            if not any(c >= a and d >= b and (c, d) != (a, b) for c, d in goods)
        ]
        assert len(labels(shown)) == len(rated)
        assert [each.partition(": ")[0] for each in labels(shown, ".best")] == best, (x, y)
        assert all(each.endswith(", on the Pareto front") for each in labels(shown, ".best"))


def test_a_point_without_a_value_is_counted_not_drawn(window):
    shown = window()
    assert "unknown" not in " ".join(labels(shown))
    assert "4 points, 3 on the Pareto front; 1 without a value on these axes" in shown.page.inner_text("#plot")
    choose(shown, "Horizontal", "energy")
    assert len(labels(shown)) == 5


def test_pointer_and_keyboard_show_a_point_and_select_it(window):
    shown = window()
    first = shown.page.locator(".point").nth(1)
    first.hover()
    tip = shown.page.locator(".tip")
    assert tip.is_visible() and "5 microjoules" in tip.inner_text() and "2 mm2" in tip.inner_text()
    first.click()
    assert shown.page.locator(".details th.text").all_inner_texts() == ["medium int8, full bus, latency 100"]
    assert shown.page.locator("#points tr.chosen").count() == 1
    shown.page.locator(".point").nth(3).focus()
    shown.page.keyboard.press("Enter")
    assert "75.00%" in shown.page.inner_text(".details")
    assert shown.page.locator("#points tr.chosen").count() == 2
    assert shown.value("document.activeElement.getAttribute('aria-pressed')") == "true"  # the focus stays
    shown.page.get_by_text("Clear the selection").click()
    assert shown.page.locator("#points tr.chosen").count() == 0
    shown.page.locator("#points tr").nth(1).click()
    assert "small" in shown.page.inner_text(".details")


def test_configurations_are_hidden_and_the_front_alone_is_shown(window):
    shown = window()
    shown.page.get_by_label("Pareto front only").check()
    assert len(labels(shown)) == 3
    shown.page.get_by_label("medium", exact=True).uncheck()
    assert [each.partition(" ")[0] for each in labels(shown)] == ["<b>small</b>", "bad", "large"]


@pytest.mark.parametrize(("width", "scheme"), [(420, "light"), (420, "dark"), (1280, "dark"), (1920, "light")])
def test_the_page_fits_into_the_window(window, width, scheme):
    shown = window(width=width, scheme=scheme)
    assert shown.value("document.documentElement.scrollWidth") <= width
    box = shown.page.locator("#plot svg[role=group]").bounding_box()
    assert box["width"] <= width
    for text in shown.page.locator("#plot svg[role=group] text").all():
        place = text.bounding_box()
        assert box["x"] <= place["x"] and place["x"] + place["width"] <= box["x"] + box["width"] + 1
    shown.page.set_viewport_size({"width": 600, "height": 800})
    shown.wait("document.querySelector('#plot svg[role=group]').clientWidth <= 600")


def test_a_network_at_a_time(browser, tmp_path):
    points = [each | {"network": name} for name in ("a.onnx", "b.onnx") for each in POINTS]
    (tmp_path / "two.html").write_text(page({"points": points}, "two networks"), encoding="utf-8")
    shown = Window(browser).open(tmp_path / "two.html")
    assert all(each.startswith("a.onnx") for each in labels(shown))
    choose(shown, "Network", "b.onnx")
    assert len(labels(shown)) == 4 and all(each.startswith("b.onnx") for each in labels(shown))
    assert json.loads(shown.page.locator("#plot-data").text_content())["points"][5]["network"] == "b.onnx"
    shown.close()


@pytest.mark.parametrize(("medium", "width"), [("screen", 1280), ("print", 717)])  # A4 without Chromium's margins
def test_the_tables_of_a_datasheet_fit_the_screen_and_the_printed_page(
    browser, nvdla_command, samples, tmp_path, medium, width
):
    words = ("--data", samples / "digits.npz", "--bandwidth", "16", "--shared", "-o", tmp_path / "sheet.html")
    assert nvdla_command("datasheet", "nv_small", samples / "lenet.loadable", *words)[0] == 0
    shown = Window(browser, width=width)
    shown.page.emulate_media(media=medium)
    shown.page.goto((tmp_path / "sheet.html").as_uri())
    beyond = "[...document.querySelectorAll('.wide')].filter((box) => box.firstChild.offsetWidth > box.clientWidth)"
    assert shown.value(f"{beyond}.length") == 0
    lines = "document.querySelector('#points td + td'), parseFloat(getComputedStyle(document.body).lineHeight)"
    assert shown.value(f"((cell, line) => cell.offsetHeight / line)({lines})") < 4
    shown.close()
