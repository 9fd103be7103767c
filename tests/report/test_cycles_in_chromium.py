"""The view Cycles in Chromium: sliders, the cycles of the run, and the sums of blocks, layers and operations."""

import re

import pytest
from support.browser import open_view, set_slider

import nvdla
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.cycles.document import grouped, operation_rows
from nvdla.analysis.study import Study
from nvdla.program.naming import Names
from nvdla.report.document import make_side
from nvdla.report.page import Data, html_page
from tests.support.packages import write_package

#: the lists of sums by their headings: the text of each row
LISTS = """Object.fromEntries([...document.querySelectorAll('#cycles h2')].map((heading) => {
  let list = heading.nextElementSibling;
  while (list && !list.matches('h2, ol')) list = list.nextElementSibling;
  return [heading.textContent, list?.matches('ol') ? [...list.children].map((row) => row.innerText) : []];
}))"""
#: the title of a row of the list of blocks is the whole name of the block
BLOCKS = "[...document.querySelectorAll('#cycles ol')][1].querySelectorAll('button')"


@pytest.fixture
def opened(window, side, lenet_path, tmp_path):
    """``opened(layers)`` opens LeNet with these names of layers."""

    def open_page(layers):
        path = tmp_path / "page.html"
        path.write_text(html_page(Data.of([side(nvdla.load(lenet_path), layers=layers)])), encoding="utf-8")
        return window().open(path)

    return open_page


def numbers(row):
    """Cycles, share and operations of a row of a list; without cycles the operations alone."""
    return [text.replace(",", "") for text in re.findall(r"(?<=\s)([\d,.]+%?)(?=\s|$)", row.replace("\n", " "))]


def test_the_cycles_tab_names_the_part_of_the_bandwidth_that_the_memory_interface_takes(window, lenet_path, tmp_path):
    study = Study.of(nvdla.load(lenet_path), memory=Memory(bytes_per_cycle=16))
    (tmp_path / "page.html").write_text(html_page(Data.of([make_side(study, Names(), 100.0)[0]])), encoding="utf-8")
    shown = window().open(tmp_path / "page.html")
    open_view(shown.page, "Cycles")
    assert shown.page.locator("#bandwidth-0").get_attribute("aria-valuetext") == "8 of 16 B/cycle = 0.8 GB/s"
    set_slider(shown.page, "bandwidth", 0)
    assert shown.page.locator("#bandwidth-0").get_attribute("aria-valuetext") == "1 B/cycle = 0.1 GB/s"


def test_sliders_recompute_the_cycles_from_the_table_of_the_page(window, page, lenet_path):
    """Latency and bandwidth give the totals of the cycle model; the clock changes the time alone."""
    shown = window().open(page)
    open_view(shown.page, "Cycles")
    said = shown.page.locator("#timing-0")
    own = shown.value("view.sides[0].total")
    speed = f"{1e9 / own:,.1f} runs per second"
    assert said.inner_text() == f"{own:,} cycles = {own / 1e6:.5f} ms at 1,000 MHz, {speed}"
    first = shown.page.locator(".bars li").first.inner_text()
    set_slider(shown.page, "latency", 3)
    set_slider(shown.page, "bandwidth", 0)
    set_slider(shown.page, "clock", 500)
    memory = Memory(latency=400, bytes_per_cycle=1.0)
    other = Study.of(nvdla.load(lenet_path), memory=memory)
    change = other.schedule.total / own - 1
    assert said.inner_text().startswith(
        f"{other.schedule.total:,} cycles = {other.schedule.total / 5e5:.4f} ms at 500 MHz, "
        f"{5e8 / other.schedule.total:,.1f} runs per second (+"
    )
    assert f"(+{change:.1%} cycles); everywhere else on this page: {own:,} cycles" in said.inner_text()
    assert shown.page.locator("#bandwidth-0").get_attribute("aria-valuetext") == "1 B/cycle = 0.5 GB/s"
    assert shown.page.locator(".bars li").first.inner_text() != first
    assert "1 B/cycle" not in shown.page.locator("svg.chart").inner_html()
    shown.page.press("#clock-0", "ArrowLeft")
    assert shown.page.locator("#clock-0").input_value() == "499"
    shown.page.click("#cycles button:has-text('Reset')")
    assert (
        said.inner_text().startswith(f"{own:,} cycles = ")
        and shown.page.locator(".bars li").first.inner_text() == first
    )
    assert shown.foreign() == [] and shown.errors == []


def test_cycles_are_summed_by_layer_and_the_colours_of_closed_subgraphs_are_explained(opened):
    """Twelve operations in two blocks: sums of both are listed; closed, the longer one has the colour of the most."""
    shown = opened({(0, index): f"{'front' if index < 6 else 'back'}_{index // 3}" for index in range(12)})
    assert shown.page.inner_text("#graph-legend").split() == ["CONV", "SDP", "PDP", "CPU"]
    shown.page.click("#close-subgraphs")
    shown.page.select_option("#colour-by", "cycles")
    assert shown.page.inner_text("#graph-legend").startswith("0 cycles")
    open_view(shown.page, "Cycles")
    headings = shown.page.locator("#cycles h2").all_inner_texts()
    assert headings == ["Roofline", "Where the cycles go", "Blocks", "Layers", "Longest operations"]
    uses = shown.page.locator("#uses-0 li").all_inner_texts()
    spent = [int(re.search(r"[\d,]{2,}", text)[0].replace(",", "")) for text in uses]
    assert sum(spent) == shown.value("view.sides[0].total")
    layers = [text.split("\n")[0] for text in shown.value(LISTS)["Layers"]]
    assert sorted(layers) == ["(CPU, no layer name)", "back_2", "back_3", "front_0", "front_1"]
    assert shown.errors == []


def test_blocks_have_the_sums_of_cycles_by_block(opened, lenet_path):
    """The block "hs" has two parts that share no data, "ip1" has a single layer, and the CPU has none."""
    layers = {(0, index): f"net/hs_{index // 2}/x" if index not in (6, 7) else "net/ip1/x" for index in range(12)}
    shown = opened(layers)
    open_view(shown.page, "Cycles")
    for memory in (Memory(100, 8), Memory(400, 8)):
        set_slider(shown.page, "latency", (50, 100, 200, 400).index(memory.latency))
        study = Study.of(nvdla.load(lenet_path), memory=memory, layers=layers)
        wanted = grouped(study, operation_rows(study), "block")
        assert [row["block"] for row in wanted] == ["net/hs", "net/ip1/x", "(CPU, no layer name)"]
        assert shown.value(f"[...{BLOCKS}].map(button => button.title)") == [row["block"] for row in wanted]
        found = shown.value(LISTS)
        assert [text.split("\n")[0] for text in found["Blocks"]] == ["hs", "ip1/x", "(CPU, no layer name)"]
        sums = [[str(row["cycles"]), f"{row['share']:.1%}", str(row["operations"])] for row in wanted]
        assert [numbers(text) for text in found["Blocks"]] == sums
    assert shown.errors == []


@pytest.mark.parametrize(
    ("layers", "lists"),
    [
        ({}, []),
        ({(0, index): f"layer{index // 4}" for index in range(12)}, ["Layers"]),
        ({(0, index): f"{'ab'[index // 6]}.{index}" for index in range(12)}, ["Blocks"]),
    ],
    ids=["no names", "a block per layer", "a layer per operation"],
)
def test_sums_are_listed_where_they_have_several_parts(opened, layers, lists):
    shown = opened(layers)
    open_view(shown.page, "Cycles")
    headings = shown.page.locator("#cycles h2").all_inner_texts()
    assert headings == ["Roofline", "Where the cycles go", *lists, "Longest operations"]


def test_the_sum_of_overlapping_operations_is_explained_at_the_lists_of_which_it_is_true(opened):
    """Shares of "Where the cycles go" are of the run."""
    shown = opened({(0, index): f"{'front' if index < 6 else 'back'}_{index // 3}" for index in range(12)})
    shown.value("view.sides[0].total = 20000")  # operations take more
    open_view(shown.page, "Cycles")
    texts = "[each.textContent, each.nextElementSibling.textContent]"
    following = dict(shown.value(f"[...document.querySelectorAll('#cycles h2')].map(each => {texts})"))
    explained = {heading for heading, text in following.items() if text.startswith("Operations overlap: alone they")}
    assert explained == {"Blocks", "Layers", "Longest operations"}
    assert shown.page.locator("#cycles p", has_text="Operations overlap").count() == 3
    assert shown.value("document.querySelector('#uses-0').nextElementSibling.textContent") == "Blocks"


def test_a_part_of_a_package_has_no_runs_per_second(window, tmp_path):
    """A run of the package has other parts, too."""
    pytest.importorskip("onnxruntime")
    write_package(tmp_path)
    made = make_side(Study.of(nvdla.load(tmp_path / "net.nvpkg" / "part0.loadable")), Names(), 1000.0)[0]
    (tmp_path / "part.html").write_text(html_page(Data.of([made])), encoding="utf-8")
    shown = window().open(tmp_path / "part.html")
    open_view(shown.page, "Cycles")
    assert shown.page.inner_text("#timing-0").endswith(" ms at 1,000 MHz")
