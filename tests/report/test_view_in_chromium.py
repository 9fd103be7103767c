"""The page in Chromium: nothing is loaded, nothing fails, everything leads on, by pointer and by keyboard."""

import itertools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.browser import open_view, set_slider

import nvdla
from nvdla.report.page import Data, html_page

BACKGROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(13, 17, 23)"
VIEWS = ("Graph", "Overview", "Operations", "Cycles", "Timeline", "Memory", "Findings", "Values", "File")
ROWS = "#operations-0 tbody tr"
#: where a drawing shows an operation: the middle of its row, in pixels of the window
PLACE = """id => {
  const graph = view.graphs[0], plane = graph.plane, box = plane.canvas.getBoundingClientRect();
  graph.reveal('op', id);
  const node = graph.ofChain[graph.side.chainOf[id]], row = node.chain.indexOf(id);
  const [x, y] = plane.toScreen(node.x + 120, node.y + row * 38 + 19);
  return [box.x + x, box.y + y];
}"""


def test_every_view_opens_without_an_error_and_without_a_request(window, page):
    shown = window().open(page)
    for name in VIEWS:
        open_view(shown.page, name)
        assert shown.page.locator(f"#{name.lower()}").bounding_box()["height"] > 300
    assert shown.foreign() == []
    assert shown.errors == []


def test_the_policy_lets_no_other_script_run(window, page):
    shown = window().open(page)
    shown.value(
        "{ const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s) }"
    )
    shown.value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">')")
    shown.page.wait_for_timeout(100)
    assert shown.value("window.ran") is None


@pytest.mark.parametrize(("scheme", "background"), [("light", LIGHT), ("dark", DARK)])
def test_light_and_dark_follow_the_system_and_the_button(window, page, scheme, background):
    shown = window(scheme=scheme).open(page)
    assert shown.value(BACKGROUND) == background
    shown.page.focus("#theme")
    shown.page.keyboard.press("Enter")
    assert shown.value(BACKGROUND) == (DARK if background == LIGHT else LIGHT)
    for name in VIEWS:
        open_view(shown.page, name)
    assert shown.errors == []


#: operations of the first graph that are in sight, at least in part
IN_SIGHT = """(() => {
  const graph = view.graphs[0], plane = graph.plane;
  return graph.nodes.filter((node) => {
    const [left, top] = plane.toScreen(node.x, node.y);
    const [right, bottom] = plane.toScreen(node.x + node.width, node.y + node.height);
    return right > 0 && bottom > 0 && left < plane.width && top < plane.height;
  }).length;
})()"""


@pytest.mark.parametrize("moved", [False, True], ids=["as opened", "moved"])
def test_the_graph_stays_in_sight_in_a_window_that_becomes_narrow(window, page, moved):
    shown = window(width=1280).open(page)
    open_view(shown.page, "Graph")
    if moved:
        shown.page.focus("#graph canvas")
        shown.page.keyboard.press("+")
    assert shown.value(IN_SIGHT)
    shown.page.set_viewport_size({"width": 420, "height": 900})
    shown.wait("view.graphs[0].plane.width < 430")
    assert shown.value(IN_SIGHT)
    open_view(shown.page, "Cycles")
    open_view(shown.page, "Graph")
    assert shown.value(IN_SIGHT)


@pytest.mark.parametrize("width", [360, 800, 1366])
def test_the_page_is_never_wider_than_the_window(window, page, width):
    shown = window(width=width, phone=width < 500).open(page)
    for name in VIEWS:
        open_view(shown.page, name)
        assert shown.value("document.documentElement.scrollWidth") <= width
    open_view(shown.page, "Cycles")
    set_slider(shown.page, "bandwidth", 1)
    assert shown.value("Math.max(...[...document.querySelectorAll('.slider')].map((each) => each.scrollWidth))") < width
    shown.value("view.choose(0, 'op', 3)")
    assert shown.value("document.getElementById('panel').getBoundingClientRect().right") <= width


@pytest.mark.parametrize("name", ["page", "both"])
def test_search_and_colors_share_a_row_at_any_width(window, request, name):
    """Next to a button as wide as that of a server; the words in the search field and the count of hits are whole."""
    shown = window().open(request.getfixturevalue(name))
    shown.page.fill("#search", "conv")
    line = "parseFloat(getComputedStyle(document.body).lineHeight)"
    shown.value("document.querySelector('.search').before(view.el('button', { style: 'width: 136px' }, 'Run'))")
    for width in range(320, 1400, 40):
        shown.page.set_viewport_size({"width": width, "height": 600})
        box, button = (shown.page.locator(name).bounding_box() for name in ("#search", "#theme"))
        assert abs(box["y"] - button["y"]) < 5 and box["width"] >= 100
        assert button["x"] + button["width"] <= width
        assert shown.value(f"document.getElementById('count').offsetHeight <= {line}")


def test_the_tab_of_the_view_is_in_sight_on_a_phone(window, page):
    """Opened from an address, chosen by a click, and after the window has become narrower."""
    shown = window(width=420, phone=True).open(f"{page.resolve().as_uri()}#view=File")
    outside = """(() => {
      const box = (query) => document.querySelector(query).getBoundingClientRect();
      const tab = box("[aria-selected=true]"), strip = box("[role=tablist]");
      return tab.left < strip.left - 1 || tab.right > strip.right + 1; // scrolled by whole pixels
    })()"""
    assert not shown.value(outside)
    for name in (*VIEWS, *reversed(VIEWS)):
        shown.value(f"view.show('{name}')")
        assert not shown.value(outside), name
    open_view(shown.page, "Memory")
    shown.page.set_viewport_size({"width": 320, "height": 600})
    shown.wait(f"!{outside}")


def test_a_click_on_an_operation_of_the_graph_shows_all_about_it(window, page):
    shown = window().open(page)
    shown.page.mouse.click(*shown.page.evaluate(PLACE, 3))
    panel = shown.page.locator("#panel")
    assert panel.locator("h2").inner_text() == "0/3 conv2+relu2"
    panel.locator("summary", has_text="Descriptor fields").click()
    row = panel.locator("tr", has=shown.page.locator("th", has_text="kernel_channel_csc"))
    row.wait_for()
    assert row.locator("td").all_inner_texts() == ["6", "channels of a kernel"]
    panel.locator("summary", has_text="Register writes").click()
    assert panel.locator("tr", has_text="CDMA.D_DATAIN_SIZE_0").inner_text().count("DATAIN_WIDTH 11") == 1
    panel.locator("summary", has_text="Weights").click()
    panel.get_by_text("16x6x5x5, 2,400 bytes, direct").wait_for()
    assert shown.errors == []


def test_names_in_the_panel_lead_on(window, page):
    shown = window().open(page)
    shown.value("view.choose(0, 'op', 0)")
    shown.page.click("#panel summary:has-text('Dependencies and data')")
    shown.page.click("#panel button.link:has-text('data')")
    assert shown.page.inner_text("#panel h2") == "data"
    shown.page.click("#panel button.link:has-text('CONV 0/0')")
    assert shown.page.inner_text("#panel h2") == "0/0 conv1+relu1"
    shown.page.click("#panel button:has-text('next')")
    assert shown.page.inner_text("#panel h2") == "0/1 conv1+relu1"


@pytest.mark.parametrize(
    ("view", "target"),
    [("Operations", f"{ROWS} >> nth=4"), ("Cycles", "#cycles circle >> nth=1"), ("Cycles", ".bars button >> nth=2"),
     ("Values", ".value button >> nth=0")],
)  # fmt: skip
def test_an_operation_is_chosen_from_every_view(window, page, view, target):
    shown = window().open(page)
    open_view(shown.page, view)
    shown.page.locator(target).dispatch_event("click")
    assert shown.page.is_visible("#panel")
    label = shown.page.inner_text("#panel h2").split()[0]
    assert shown.value("view.sides[0].operations[view.chosen.id].label") == label


@pytest.mark.parametrize("view", ["Timeline", "Memory"])
def test_bars_of_the_drawings_over_time_can_be_clicked(window, page, view):
    shown = window().open(page)
    open_view(shown.page, view)
    box = shown.page.locator(f"#{view.lower()} canvas >> nth=0").bounding_box()
    y = 40 if view == "Timeline" else 200
    shown.page.mouse.click(box["x"] + 300, box["y"] + y)
    assert shown.page.is_visible("#panel")
    assert shown.value("view.chosen.kind") == ("op" if view == "Timeline" else "value")


def test_the_timeline_shows_the_use_of_memory_buffer_and_macs(window, page):
    """The tracks are below the engines, and a pointer on one names its value."""
    shown = window().open(page)
    open_view(shown.page, "Timeline")
    box = shown.page.locator("#timeline canvas >> nth=0").bounding_box()
    names = shown.value("view.sides[0].tracks.map(track => track.name)")
    assert names == ["memory reads", "memory writes", "CBUF", "MAC array"]
    peak = shown.value("view.sides[0].tracks[3].points.reduce((a, b) => (b[1] > a[1] ? b : a))")
    x = box["x"] + 104 + (box["width"] - 120) * (peak[0] + 40) / shown.value("view.sides[0].cycles")
    rows = shown.value("new Set(view.sides[0].operations.map(op => op.engine + op.group)).size")
    y = box["y"] + 26 + rows * 30 + 10 + 3.5 * 110  # below the axis, the engines and three tracks
    shown.page.mouse.move(x, y)
    tip = shown.page.locator("#timeline .tip").inner_text()
    assert tip.startswith("MAC array at cycle ") and tip.endswith(" %")
    assert float(tip.split()[-2]) == pytest.approx(peak[1], rel=0.01)
    shown.page.mouse.click(x, y)
    assert not shown.page.is_visible("#panel") and shown.errors == []


def test_arrow_keys_go_through_the_graph(window, page):
    shown = window().open(page)
    shown.page.focus("#graph canvas")
    for _ in range(3):
        shown.page.keyboard.press("ArrowDown")
    shown.page.keyboard.press("ArrowUp")
    assert shown.page.inner_text("#panel h2") == "0/1 conv1+relu1"
    shown.page.keyboard.press("Enter")
    assert shown.value("document.getElementById('panel').contains(document.activeElement)")
    shown.page.keyboard.press("Escape")
    assert not shown.page.is_visible("#panel")


def test_the_graph_is_moved_and_zoomed_by_wheel_keys_and_dragging(window, page):
    shown = window().open(page)
    state = "[view.graphs[0].plane.x, view.graphs[0].plane.y, view.graphs[0].plane.sx]"
    box = shown.page.locator("#graph canvas >> nth=0").bounding_box()
    seen = [shown.value(state)]
    shown.page.mouse.move(box["x"] + 60, box["y"] + 200)
    mouse, keyboard = shown.page.mouse, shown.page.keyboard
    acts = (
        lambda: mouse.wheel(0, 120),
        lambda: (keyboard.down("Control"), mouse.wheel(0, -120), keyboard.up("Control")),
        lambda: (shown.page.focus("#graph canvas"), keyboard.press("+")),
        lambda: (mouse.down(), mouse.move(box["x"] + 160, box["y"] + 300, steps=4), mouse.up()),
    )
    for act in acts:
        act()
        shown.wait(f"JSON.stringify({state}) !== '{shown.value(f'JSON.stringify({seen[-1]})')}'")
        seen.append(shown.value(state))
    assert seen[2][2] > seen[1][2]
    assert seen[3][2] > seen[2][2]
    shown.page.keyboard.press("0")
    assert shown.value("view.graphs[0].plane.fitted")


def test_search_finds_leads_and_is_left_by_keyboard(window, page):
    shown = window().open(page)
    shown.page.keyboard.press("/")
    shown.page.keyboard.type("pdp pool2")
    assert shown.page.inner_text("#count") == "1 of 13"
    assert shown.page.locator("#hits button").all_inner_texts() == ["PDP 0/5 pool2"]
    shown.page.keyboard.press("Enter")
    assert shown.page.inner_text("#panel h2") == "0/5 pool2"
    shown.page.keyboard.press("Escape")
    assert shown.value("document.activeElement.tagName") == "BODY"
    open_view(shown.page, "Operations")
    shown.page.fill("#search", "conv2")
    assert shown.page.locator(ROWS).count() == 2


def test_a_heading_sorts_by_its_numbers_up_and_down(window, page):
    shown = window().open(page)
    open_view(shown.page, "Operations")
    heading = shown.page.locator("#operations-0 th", has_text="Cycles")
    cells = (
        f"Array.from(document.querySelectorAll('{ROWS}')).map(r => view.sides[0].operations[r.dataset.row])"
        ".filter(o => o.leads && o.cycles).map(o => o.cycles)"
    )
    heading.locator("button").click()
    assert shown.value(cells) == sorted(shown.value(cells))
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert shown.value(cells) == sorted(shown.value(cells), reverse=True)
    shown.page.locator("#operations-0 th button", has_text="Operation").click()
    labels = shown.page.locator(f"{ROWS} td:first-child").all_inner_texts()
    assert labels == sorted(labels, key=lambda text: [int(part) for part in text.split("/")])


def test_arrow_keys_move_through_the_rows(window, page):
    shown = window().open(page)
    open_view(shown.page, "Operations")
    shown.page.locator(f"{ROWS} >> nth=0").focus()
    shown.page.keyboard.press("ArrowDown")
    shown.page.keyboard.press("Enter")
    assert shown.page.inner_text("#panel h2") == "0/1 conv1+relu1"
    assert shown.page.locator("#operations-0 tr[tabindex='0']").count() == 1


def test_histograms_have_round_ticks(window, page):
    """1, 2 or 5 times a power of ten apart, within the range of the tensor, in real numbers."""
    shown = window().open(page)
    shown.page.click("#tab-values")
    drawn = shown.page.locator(".histogram >> nth=1").locator("text")
    drawn.nth(2).wait_for(state="attached")
    texts = drawn.all_text_contents()
    ticks = [float(text.replace(",", "")) for text in texts]
    assert len(ticks) >= 3
    step = ticks[1] - ticks[0]
    assert np.allclose(np.diff(ticks), step)
    assert round(step / 10 ** np.floor(np.log10(step) + 1e-9)) in (1, 2, 5)


@pytest.mark.parametrize(
    "zero, low, wanted", [(-128, -128, (0, 1)), (0, -128, (-0.5, 0.5)), (28, -128, (-0.612, 0.388))]
)
def test_the_axis_of_a_histogram_starts_at_the_zero_point(window, page, zero, low, wanted):
    """Ticks are real numbers, (element - zero point) * scale; the dotted line is at 0."""
    shown = window().open(page)
    histogram = f"{{ low: {low}, high: 128, counts: [1, 2] }}"
    row = f"{{ min: {low}, max: 127, scale: 1 / 255, zero: {zero}, histogram: {histogram} }}"
    ticks, zeros = shown.value(
        f"(() => {{ const made = view.histogram({row});"
        " const number = (each, name) => Number(each.getAttribute(name));"
        " return [[...made.querySelectorAll('text')].map(each => [Number(each.textContent), number(each, 'x')]),"
        " [...made.querySelectorAll('.zero')].map(each => number(each, 'x1'))] })()"
    )
    for real, x in ticks:
        assert np.isclose(x, (real * 255 + zero - low) / 256 * 320)
    assert wanted[0] - 0.01 <= ticks[0][0] and ticks[-1][0] <= wanted[1] + 0.01
    assert np.allclose(zeros, [] if zero == low else [(zero - low) / 256 * 320])


def test_names_of_tflite_are_short_and_whole_in_the_panel(window, side, lenet_path, tmp_path):
    whole = "net_1/l{0}_relu/Relu6;net_1/bn/add_1;net_1/l{0}/depthwise;+net_1/l{0}_relu/Relu6;net_1/bn/add_1.2"
    names = {(0, index): whole.format(index) for index in range(12)}
    path = tmp_path / "names.html"
    path.write_text(html_page(Data.of([side(nvdla.load(lenet_path), layers=names)])), encoding="utf-8")
    shown = window().open(path)
    shown.value("view.choose(0, 'op', 3)")
    assert shown.page.inner_text("#panel h2") == "0/3 l3_relu/Relu6"
    assert whole.format(3) in shown.page.inner_text("#panel dl >> nth=0")
    open_view(shown.page, "Operations")
    cell = shown.page.locator("#operations-0 tr[data-row='3'] td >> nth=2")
    assert cell.inner_text() == "l3_relu/Relu6"
    assert cell.locator("span").get_attribute("title") == whole.format(3)
    open_view(shown.page, "Cycles")
    labels = [text for text in shown.page.locator(".chart text").all_text_contents() if "Relu6" in text]
    assert labels and len(labels) == len(set(labels)) and all(len(text) < 23 for text in labels)
    open_view(shown.page, "Memory")
    assert shown.value("view.sides[0].values.every(value => !value.short.includes(';'))")


def test_an_enlarged_feature_map_shows_its_values(window, page):
    shown = window().open(page)
    shown.value("view.choose(0, 'op', 2)")
    sheet = shown.page.locator("#panel .sheet >> nth=0")
    assert sheet.evaluate("c => [c.width, c.height]") == [3 * 12 + 2, 2 * 12 + 1]  # six channels of 12 x 12
    box = sheet.bounding_box()
    shown.page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.9)
    said = shown.page.locator("#panel .maps output >> nth=0").inner_text()
    assert said.startswith("channel 5, row ")
    assert "(" in said  # the real number, then the element
    sheet.click(position={"x": 5, "y": 5})
    assert sheet.evaluate("c => [c.width, c.height]") == [12, 12]
    assert shown.errors == []


def test_the_picture_of_the_input_is_the_image(window, page, digit_path):
    """The pixels on the page are those of the file."""
    import numpy as np
    from PIL import Image

    shown = window().open(page)
    open_view(shown.page, "Overview")
    pixels = shown.value(
        "(() => { const c = document.querySelector('#overview .sheet');"
        " const pixels = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " return Array.from(pixels).filter((_, i) => i % 4 === 0) })()"
    )
    image = np.asarray(Image.open(digit_path), np.float64).reshape(-1)
    assert np.corrcoef(pixels, image)[0, 1] > 0.999


def test_both_sides_are_shown_and_led_by_one_another(window, both):
    shown = window().open(both)
    assert shown.value("view.graphs.length") == 2
    shown.page.click("#tab-compare")
    row = shown.page.locator("table#compare tbody tr", has_text="pool1")
    cells = row.locator("td").all_inner_texts()
    assert 20 < float(cells[6]) < 60  # SNR of int8 against fp16, in dB
    row.locator("button >> nth=1").click()
    assert shown.page.inner_text("#panel h2") == "B: 0/2 pool1"
    assert "Output of A" in shown.page.inner_text("#panel")
    assert shown.value("view.chosenOn(0)") == {"side": 0, "kind": "op", "id": 2}
    assert shown.errors == []


def test_operations_without_a_counterpart_are_counted_in_the_singular(window, both):
    shown = window().open(both)
    shown.value("view.data.pairs.pop()")
    shown.page.click("#tab-compare")
    assert "Without a counterpart: 1 operation of A, 1 of B." in shown.page.inner_text("#compare")


def test_the_address_contains_the_selection(window, page):
    shown = window().open(page)
    shown.page.click("#tab-memory")
    shown.value("view.choose(0, 'op', 5)")
    address = shown.page.url
    again = window().open(address)
    assert again.page.is_visible("#memory")
    assert again.page.inner_text("#panel h2") == "0/5 pool2"


def test_paper_shows_everything_on_white(window, page):
    shown = window(scheme="dark").open(page)
    assert shown.page.pdf(prefer_css_page_size=True)[:4] == b"%PDF"
    shown.page.emulate_media(media="print")
    assert shown.value(BACKGROUND) == LIGHT


def test_a_hostile_loadable_cannot_inject(window, side, lenet_path, tmp_path):
    """Every text of the file and every layer name is an attack; the page shows them all, and none runs."""
    loadable = nvdla.load(lenet_path)
    attack = (
        "\"'></title></svg></style></div><script>window.ran=1</script><img src=x onerror='window.ran=1'>-->\\n{{7*7}}"
    )
    names = {blob.name: f"{blob.name}{attack}" for blob in loadable.blobs}
    hostile = replace(
        loadable,
        name=f"net{attack}",
        blobs=tuple(replace(blob, name=names[blob.name]) for blob in loadable.blobs),
        memories=tuple(
            replace(memory, contents=tuple(names[each] for each in memory.contents)) for memory in loadable.memories
        ),
        tensors=tuple(replace(tensor, name=f"{tensor.name}{attack}") for tensor in loadable.tensors),
    )
    text = html_page(Data.of([side(hostile, layers={(0, index): f"layer{index}{attack}" for index in range(12)})]))
    assert text.count("<script>") == 1
    assert "<img" not in text
    path = tmp_path / "hostile.html"
    path.write_text(text, encoding="utf-8")
    shown = window().open(path)
    for name in VIEWS[:-2] + VIEWS[-1:]:
        open_view(shown.page, name)
    for number in range(13):
        shown.value(f"view.choose(0, 'op', {number})")
    assert shown.page.inner_text("#panel h2").startswith("1/0")
    assert attack in shown.value("view.sides[0].operations[3].layer")
    assert shown.value("window.ran") is None
    assert shown.value("document.querySelectorAll('script').length") == 1
    assert shown.value("document.querySelectorAll('img').length") == 0
    assert shown.value("document.querySelector('#overview dd').textContent") == f"net{attack}"
    assert shown.errors == []
    assert shown.foreign() == []


def test_subgraphs_are_closed_and_opened_and_arrows_shown_on_request(window, side, lenet_path, tmp_path):
    """Two subgraphs of six operations: closed they are two boxes, and what is chosen stays chosen."""
    names = {(0, index): f"{'front' if index < 6 else 'back'}_{index // 3}" for index in range(12)}
    path = tmp_path / "subgraphs.html"
    made = side(nvdla.load(lenet_path), layers=names)
    path.write_text(html_page(Data.of([made])), encoding="utf-8")
    shown = window().open(path)
    graph = "view.graphs[0]"
    assert shown.value(f"{graph}.names") == ["front", "back"]
    whole = shown.value(f"{graph}.nodes.length")
    shown.page.click("#close-subgraphs")
    assert shown.value(f"{graph}.nodes.filter(node => node.kind === 'subgraph').length") == 2
    assert shown.value(f"{graph}.nodes.length") < whole
    place = shown.value(
        f"(() => {{ const g = {graph}, n = g.nodes.find(n => n.kind === 'subgraph');"
        " const b = g.plane.canvas.getBoundingClientRect();"
        " const [x, y] = g.plane.toScreen(n.x + 60, n.y + 14); return [b.x + x, b.y + y] })()"
    )
    shown.page.mouse.click(*place)
    assert shown.page.inner_text("#panel h2") == "front"
    shown.page.click("#panel button:has-text('Open subgraph')")
    assert shown.value(f"{graph}.nodes.filter(node => node.kind === 'subgraph').length") == 1
    shown.page.click("#open-subgraphs")
    assert shown.value(f"{graph}.nodes.length") == whole
    for box in ("#show-events", "#show-hazards"):
        shown.page.check(box)
    shown.page.select_option("#colour-by", "cycles")
    shown.page.wait_for_timeout(100)
    assert shown.value(f"{graph}.events && {graph}.hazards && {graph}.by === 'cycles'")
    assert shown.errors == []


@pytest.mark.parametrize("width", [1280, 420])
def test_the_button_of_a_subgraph_says_what_it_does(window, side, lenet_path, tmp_path, width):
    """Also after it was pressed, and after the subgraph was opened or closed elsewhere; the focus stays on it."""
    names = {(0, index): f"{'front' if index < 6 else 'back'}_{index // 3}" for index in range(12)}
    path = tmp_path / "subgraphs.html"
    path.write_text(html_page(Data.of([side(nvdla.load(lenet_path), layers=names)])), encoding="utf-8")
    shown = window(width=width, phone=width < 500).open(path)
    shown.page.click("#close-subgraphs")
    shown.value("view.choose(0, 'subgraph', 'front')")
    button = shown.page.locator("#panel .row button")
    for text in ("Open subgraph", "Close subgraph") * 2:
        assert button.inner_text() == text
        assert shown.value("view.graphs[0].closed.has('front')") == (text == "Open subgraph")
        button.click()
        assert shown.value("document.activeElement.closest('#panel') !== null")
    for tool, text in (("open", "Close subgraph"), ("close", "Open subgraph")):
        shown.page.locator(f"#{tool}-subgraphs").dispatch_event("click")
        assert button.inner_text() == text
    shown.value("view.graphs[0].toggle('back')")
    assert button.inner_text() == "Open subgraph" and shown.errors == []


def test_a_value_lives_until_the_step_after_its_last_reader(window, side, lenet_path, tmp_path):
    """As in the curve of the live bytes: it has the same value until the next step begins."""
    path = tmp_path / "lives.html"
    path.write_text(html_page(Data.of([side(nvdla.load(lenet_path))])), encoding="utf-8")
    shown = window().open(path)
    of = "view.graphs[0].side"
    first = f"{of}.values.find(value => value.kind === 'input')"
    assert shown.value(f"view.life({of}, {first})") == [0, shown.value(f"{of}.times[{first}.last + 1][0]")]


def test_a_subgraph_encloses_only_its_operations(window, side, lenet_path, tmp_path):
    """A subgraph with an operation of another subgraph between its own has two frames."""
    path = tmp_path / "subgraphs.html"
    names = {(0, index): f"hs_{index // 2}" if index not in (6, 7) else "ip1" for index in range(12)}
    path.write_text(html_page(Data.of([side(nvdla.load(lenet_path), layers=names)])), encoding="utf-8")
    shown = window().open(path)
    graph = "view.graphs[0]"
    touch = "n.x < f.right && n.x + n.width > f.x && n.y < f.bottom && n.y + n.height > f.y"
    inside = f"(f => {graph}.nodes.filter(n => {touch}))"
    subgraphs = f"{graph}.frames.map({inside}).map(nodes => nodes.map(n => n.subgraph))"
    assert shown.value(subgraphs) == [["hs", "hs"], ["hs (2)", "hs (2)"]]
    shown.value(
        f"{graph}.side.operations.filter(op => op.subgraph).forEach(op => {{ op.subgraph = 'hs' }}), {graph}.build()"
    )
    assert shown.value(subgraphs) == [["hs", "hs"], ["hs", "hs"]]
    assert shown.errors == []


def test_opened_subgraphs_are_shown_from_the_input_on(window, side, lenet_path, tmp_path):
    names = {(0, index): f"{'front' if index < 10 else 'back'}_{index // 3}" for index in range(12)}
    path = tmp_path / "subgraphs.html"
    path.write_text(html_page(Data.of([side(nvdla.load(lenet_path), layers=names)])), encoding="utf-8")
    shown = window(width=900, height=300).open(path)
    shown.page.click("#close-subgraphs")
    shown.page.click("#open-subgraphs")
    graph = "view.graphs[0]"
    top = f"{graph}.plane.toScreen(0, {graph}.ofChain[{{0}}].y)[1]"
    assert 0 < shown.value(top.format(0)) < shown.value(f"{graph}.plane.height")
    assert shown.value(top.format(f"{graph}.ofChain.length - 1")) > shown.value(f"{graph}.plane.height")
    assert shown.errors == []


def test_back_and_forward_go_through_the_views_and_the_address_can_be_edited(window, page):
    shown = window().open(page)
    for name in ("Memory", "Cycles"):
        open_view(shown.page, name)
    shown.value("view.choose(0, 'op', 3)")
    shown.page.go_back()
    shown.wait("document.getElementById('panel').hidden")
    shown.page.go_back()
    shown.page.wait_for_selector("#memory", state="visible")
    shown.page.go_forward()
    shown.page.wait_for_selector("#cycles", state="visible")
    shown.value("location.hash = 'view=Operations&op=0/3'")
    shown.page.wait_for_selector("#operations", state="visible")
    assert shown.page.inner_text("#panel h2").startswith("0/3")
    assert shown.errors == []


def test_an_input_of_three_channels_is_shown_as_the_picture(window, side, samples, tmp_path):
    """The colors on the page are those of the file; a click shows the channels."""
    from PIL import Image

    path, image = samples / "color_digits.loadable", samples / "color_digit7.ppm"
    page = tmp_path / "colors.html"
    page.write_text(html_page(Data.of([side(nvdla.load(path), path, str(image))])), encoding="utf-8")
    shown = window().open(page)
    open_view(shown.page, "Overview")
    sheet = shown.page.locator("#overview .sheet")
    pixels = sheet.evaluate(
        "c => [c.width, c.height, ...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    )
    width, height, *values = pixels
    colors = np.reshape(values, (height, width, 4))[..., :3]
    wanted = np.asarray(Image.open(image), np.float64)
    assert colors.shape == wanted.shape == (32, 32, 3)
    assert np.corrcoef(colors.ravel(), wanted.ravel())[0, 1] > 0.99
    sheet.hover(position={"x": 5, "y": 5})
    assert shown.page.inner_text("#overview .maps output").startswith("row 0, column 0: red, green, blue ")
    sheet.click(position={"x": 5, "y": 5})
    assert shown.page.locator("#overview input").input_value() == "0" and shown.errors == []


@pytest.mark.parametrize(("name", "has_steps"), [("lenet", True), ("lenet_nv_full_fp16", False)])
def test_integers_have_steps_and_halves_have_none(window, side, samples, tmp_path, name, has_steps):
    path, page = samples / f"{name}.loadable", tmp_path / "page.html"
    page.write_text(html_page(Data.of([side(nvdla.load(path), path, str(samples / "digit5.pgm"))])), encoding="utf-8")
    shown = window().open(page)
    open_view(shown.page, "Values")
    text = shown.page.inner_text("#values")
    assert "mean" in text and (", step 0.0" in text) == has_steps and (has_steps or "step" not in text)


def test_headings_are_named_and_in_order(window, page):
    """No heading is empty, and none is more than one level below the heading before it (for screen readers)."""
    shown = window().open(page)
    shown.value("view.choose(0, 'op', 2)")
    for name in VIEWS:
        open_view(shown.page, name)
        shown.page.wait_for_timeout(100)
        headings = shown.value(
            "Array.from(document.querySelectorAll('h1, h2, h3, h4')).filter(h => h.offsetParent)"
            ".map(h => [Number(h.tagName[1]), h.textContent.trim()])"
        )
        levels = [level for level, _ in headings]
        assert all(text for _, text in headings), (name, headings)
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels)), (name, headings)


def test_the_index_of_a_package_names_its_columns_and_adds_its_cycles(window, tmp_path):
    rows = [
        {"name": "part0.loadable", "page": "a.html", "bytes": 5, "error": None, "cycles": 1200},
        {
            "name": "part1 (host): MatMul",
            "page": None,
            "host": True,
            "bytes": 7,
            "error": "runs on the host, not timed; " + "MatMul: both matrices are computed; " * 9 + "x" * 90,
        },
    ]
    (tmp_path / "index.html").write_text(html_page(Data.of_index("net.nvpkg", rows)), encoding="utf-8")
    shown = window().open(tmp_path / "index.html")
    assert all(shown.page.locator("th").all_inner_texts())
    assert "1,200 cycles on the accelerator; parts on the host are not timed." in shown.page.inner_text("#list")
    assert shown.page.locator("td .soft").inner_text() == rows[1]["error"]
    assert shown.page.locator("td .bad").count() == 0
    for scheme in ("light", "dark"):
        phone = window(width=420, scheme=scheme).open(tmp_path / "index.html")
        reason = "document.querySelector('td .reason')"
        assert phone.value(f"{reason}.getBoundingClientRect().right <= innerWidth")
        assert phone.value(f"{reason}.scrollWidth <= {reason}.clientWidth")


def test_the_keyboard_scrolls_every_view(window, page):
    shown = window().open(page)
    panels = shown.value("Array.from(document.querySelectorAll('[role=tabpanel]')).map(panel => panel.tabIndex)")
    assert panels and set(panels) == {0}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1280])
def test_axe_finds_no_accessibility_problem(chromium_browser, page, width, scheme):
    """With AXE_CORE=.../axe.min.js of the npm package axe-core."""
    axe = os.environ.get("AXE_CORE")
    if not axe:
        pytest.skip("AXE_CORE does not name axe.min.js (npm install axe-core)")
    context = chromium_browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True
    )
    tab = context.new_page()
    tab.goto(page.resolve().as_uri())
    tab.wait_for_selector("html[data-ready]")
    tab.evaluate(Path(axe).read_text(encoding="utf-8"))
    found = {}
    for name in VIEWS:
        tab.evaluate("name => { view.show(name); view.choose(0, 'op', 0) }", name)
        tab.wait_for_timeout(200)
        for rule in tab.evaluate("axe.run(document)")["violations"]:
            found[name, rule["id"]] = rule["nodes"][0]["html"]
    context.close()
    assert found == {}


def test_no_texts_of_the_roofline_overlap(window, side, lenet_path, tmp_path):
    """The text of the roof is near the operations that use the MAC array well."""
    net = side(nvdla.load(lenet_path), layers={(0, index): f"a_long_name_of_layer_{index}" for index in range(12)})
    path = tmp_path / "roof.html"
    path.write_text(html_page(Data.of([net])), encoding="utf-8")
    shown = window().open(path)
    open_view(shown.page, "Cycles")
    chart = """(macs) => {
      const side = view.sides[0];
      const busy = (op) => ({ cycles: Math.ceil(op.macs / macs), read: op.macs / 40, written: 0 });
      for (const op of side.operations) if (op.macs) Object.assign(op, busy(op));
      document.querySelector('#cycles').replaceChildren(view.roofline(side));
      const texts = [...document.querySelectorAll('.chart text:not([transform])')];
      return texts.map((text) => text.getBoundingClientRect().toJSON());
    }"""
    for macs in (30, 45, 55, 64):
        boxes = shown.page.evaluate(chart, macs)
        for one, other in itertools.combinations(boxes, 2):
            across = min(one["right"], other["right"]) - max(one["left"], other["left"])
            down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
            assert across <= 0 or down <= 5, (macs, one, other)
