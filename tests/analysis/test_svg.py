"""Drawings: ticks are round numbers, nothing is clipped, and everything can be read on light and on dark."""

import itertools
import random
import re
from pathlib import Path

import pytest

import nvdla
from nvdla.analysis import graph, memory
from nvdla.analysis.cycles.document import schedule_svg, trace_document
from nvdla.analysis.explain import buffer_svg
from nvdla.analysis.graph import dot_program, dot_svg, dot_text, layered_svg
from nvdla.analysis.memory import MemoryMap, memory_svg
from nvdla.analysis.study import Study
from nvdla.analysis.svg import Drawing, round_ticks
from nvdla.program.naming import names_for

LENET = Path(__file__).resolve().parents[2] / "samples" / "lenet.loadable"
#: texts that leave the drawing, and the least contrast of a text on the background or on its bar
LOOK = """() => { const svg = document.documentElement, all = svg.getBoundingClientRect();
  const light = colour => { const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map(v => (v /= 255) <= 0.03928 ?
    v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const page = svg.querySelector('rect.page');
  const back = light(page ? getComputedStyle(page).fill : getComputedStyle(svg).backgroundColor);
  const contrasts = [], clipped = [];
  for (const text of svg.querySelectorAll('text')) {
    const box = text.getBoundingClientRect();
    if (box.left < all.left - 1 || box.right > all.right + 1 || box.bottom > all.bottom + 1)
      clipped.push(text.textContent);
    const fill = getComputedStyle(text).fill, bar = text.matches('.bar');
    const behind = bar ? light(getComputedStyle(text.previousElementSibling).fill) : back;
    if (bar || fill !== 'rgb(255, 255, 255)') { const own = light(fill);
      contrasts.push((Math.max(own, behind) + 0.05) / (Math.min(own, behind) + 0.05)) } }
  return [clipped, Math.min(...contrasts)] }"""


@pytest.fixture(scope="module")
def study():
    return Study.of(nvdla.load(LENET), layers=names_for(LENET).layers)


@pytest.mark.parametrize(
    ("total", "found"),
    [(28879, list(range(0, 28001, 5000))), (1, [0, 1]), (7, list(range(8))), (100, list(range(0, 101, 20)))],
)
def test_ticks_are_round(total, found):
    assert round_ticks(total, 8) == [each for each in found if each <= total]


def test_the_last_tick_is_never_beyond_the_end():
    for total in (*range(1, 300), 10**9 + 1):
        ticks = round_ticks(total, 8)
        assert ticks[0] == 0
        assert ticks[-1] <= total
        assert 2 <= len(ticks) <= 9


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("drawing", ["schedule", "memory", "buffer", "layered", "graphviz"])
def test_nothing_is_clipped_and_texts_can_be_read(chromium_browser, study, tmp_path, drawing, scheme):
    if drawing == "graphviz" and dot_program() is None:
        pytest.skip("graphviz is not installed (Debian: apt-get install graphviz)")
    text = {
        "schedule": lambda: schedule_svg(study, 1000.0),
        "memory": lambda: memory_svg(MemoryMap.of(study)),
        "buffer": lambda: buffer_svg(study),
        "layered": lambda: layered_svg(study),
        "graphviz": lambda: dot_svg(dot_text(study)),
    }[drawing]()
    path = tmp_path / "drawing.svg"
    path.write_text(text, encoding="utf-8")
    context = chromium_browser.new_context(color_scheme=scheme, viewport={"width": 1600, "height": 1200})
    page = context.new_page()
    page.goto(path.as_uri())
    clipped, contrast = page.evaluate(LOOK)
    context.close()
    assert clipped == []
    assert contrast >= 4


def test_traces_for_perfetto_name_the_layers(study):
    names = {event["name"] for event in trace_document(study, 1000.0)["traceEvents"] if event["ph"] == "X"}
    assert {"CONV 0/3 conv2+relu2", "PDP 0/5 pool2", "CPU 1/0 prob"} <= names


def test_captions_of_the_memory_axis_are_apart(study):
    """As many steps as in a large network: no caption touches the next one or leaves the drawing."""
    steps = [{"operations": [f"0/{number}"], "engines": ["conv"]} for number in range(80)]
    drawing = Drawing()
    memory._axis(drawing, steps, 14.0, 14.0 * 80, 30.0, 100.0)
    texts = [(float(x), text) for x, text in re.findall(r'<text x="([0-9.]+)"[^>]*>([^<]+)', "".join(drawing.parts))]
    assert len(texts) > 5
    for (x, text), (after, _) in itertools.pairwise(texts):
        assert x + memory.CHARACTER * len(text) < after
    assert texts[-1][0] + memory.CHARACTER * len(texts[-1][1]) <= memory.LEFT + 14 * 80 + memory.RIGHT


def test_weights_come_after_the_tensors_of_a_run(study):
    names = re.findall(r"<text[^>]*>0x[0-9a-f]+  ([^<]+)</text>", memory_svg(MemoryMap.of(study)))
    weights = [name.startswith("tb-") for name in names]
    assert weights == sorted(weights) and 0 < sum(weights) < len(weights)


@pytest.mark.parametrize(("count", "wide"), [(3, 1), (90, 2), (300, 1), (300, 8), (2000, 1)])
def test_long_graphs_are_drawn_in_columns(count, wide):
    """No drawing is much higher than wide, and no box covers another one."""
    rows = [
        [
            graph._Box(f"{row} {column}", ["a", "b"], "#000000", False, column=column - (wide - 1) / 2)
            for column in range(wide)
        ]
        for row in range(count)
    ]
    layout = graph._placed(rows)
    places, width, height = layout.place, layout.width, layout.height
    assert len(places) == count * wide and len(set(places.values())) == count * wide
    assert count < 60 or (height < 3 * width and width < 4 * height)
    assert min(x for x, _ in places.values()) >= graph.WIDTH / 2
    assert max(x for x, _ in places.values()) + graph.WIDTH / 2 <= width
    for (x, y), (other, lower) in itertools.pairwise(sorted(places.values())):
        assert other - x >= graph.WIDTH or (x == other and lower - y >= rows[0][0].height)


@pytest.mark.parametrize("seed", range(6))
def test_lines_of_a_drawing_in_columns_cross_no_box(seed):
    """Of random graphs with long edges, also over several columns and upwards."""
    rng = random.Random(seed)
    drawing = graph._Graph()
    for number in range(260):
        lines = ["a"] * rng.randint(1, 4)
        drawing.boxes[str(number)] = graph._Box(str(number), lines, "#000000", False)
        for source in {max(number - 1 - rng.randrange(3), 0), rng.randrange(max(number, 1))} if number else ():
            drawing.edges.append((str(source), str(number), ""))
    drawing.events = [(str(rng.randrange(260)), str(rng.randrange(100)), "event") for _ in range(20)]
    layout = graph._placed(drawing.rows())
    assert len(layout.tracks) > 3
    routed = 0
    for edge in drawing.edges + drawing.events:
        path = re.search(r' d="([^"]+)"', graph._line(drawing, layout, edge, False))[1]
        if "C" in path:
            continue
        routed += 1
        x, y = map(float, re.match(r"M([\d.]+),([\d.]+)", path).groups())
        points = [(x, y)]
        for letter, value in re.findall(r"([HV])([-\d.]+)", path):
            x, y = (float(value), y) if letter == "H" else (x, float(value))
            points.append((x, y))
        for name, (center, top) in layout.place.items():
            left, right, bottom = center - graph.WIDTH / 2, center + graph.WIDTH / 2, top + drawing.boxes[name].height
            for (x1, y1), (x2, y2) in itertools.pairwise(points):
                apart = max(x1, x2) <= left or min(x1, x2) >= right or max(y1, y2) <= top or min(y1, y2) >= bottom
                assert apart, (edge, name, path)
    assert routed > 100
