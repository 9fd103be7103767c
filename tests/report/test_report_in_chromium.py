"""The report in Debian's Chromium: nothing is loaded, nothing fails, and it is usable by keyboard."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import nvdla

ROWS = "Array.from(document.querySelectorAll('#operations-table tbody tr'))"
SHOWN = f"{ROWS}.filter(row => !row.hidden)"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(13, 17, 23)"


def numbers_in(browser, column):
    expression = f"{ROWS}.map(row => row.cells[{column}].dataset.value).filter(each => each !== undefined).map(Number)"
    return browser.value(expression)


def column_of(browser, name):
    found = browser.value("Array.from(document.querySelectorAll('#operations-table th')).map(each => each.textContent)")
    return found.index(name)


def test_nothing_is_loaded_and_nothing_fails(browser, page):
    browser.open(page)
    assert browser.value("document.querySelectorAll('section').length") == 8
    assert [url for url in browser.requests if not url.startswith(("file:", "data:", "about:"))] == []
    assert browser.errors == []


def test_the_policy_lets_no_other_script_run(browser, page):
    browser.open(page)
    browser.value("{ const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
                  " document.body.append(s); }")  # fmt: skip
    browser.value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">')")
    assert browser.value("window.ran") is None


@pytest.mark.parametrize(("scheme", "background"), [("light", LIGHT), ("dark", DARK)])
def test_light_and_dark_follow_the_system_and_the_button(browser, page, scheme, background):
    browser.media(scheme=scheme)
    browser.open(page)
    assert browser.value(BACKGROUND) == background
    browser.value("document.getElementById('theme').focus()")
    browser.press("Enter")
    assert browser.value(BACKGROUND) == (DARK if background == LIGHT else LIGHT)
    assert browser.errors == []


def test_paper_is_white_and_everything_is_unfolded(browser, page):
    browser.media(scheme="dark")
    browser.open(page)
    browser.media("print", "dark")
    assert browser.value(BACKGROUND) == LIGHT
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.pdf().startswith(b"%PDF")
    assert browser.value("Array.from(document.querySelectorAll('details')).every(each => each.open)")


@pytest.mark.parametrize("width", [360, 800, 1366])
def test_the_page_is_never_wider_than_the_window(browser, page, width):
    browser.open(page, width)
    assert browser.value("document.documentElement.scrollWidth") <= width


def test_a_heading_sorts_by_its_numbers_up_and_down(browser, page):
    browser.open(page)
    column = column_of(browser, "Cycles")
    before = numbers_in(browser, column)
    browser.value(f"document.querySelectorAll('#operations-table th button')[{column}].focus()")
    browser.press("Enter")
    assert numbers_in(browser, column) == sorted(before)
    browser.press("Enter")
    assert numbers_in(browser, column) == sorted(before, reverse=True)
    heading = f"document.querySelectorAll('#operations-table th')[{column}]"
    assert browser.value(f"{heading}.getAttribute('aria-sort')") == "descending"


def test_operations_sort_as_numbers_not_as_letters(browser, page):
    browser.open(page)
    browser.value("document.querySelector('#operations-table th button').focus()")
    browser.press("Enter")
    labels = browser.value(f"{ROWS}.map(row => row.cells[0].textContent)")
    assert labels == sorted(labels, key=lambda text: [int(part) for part in text.split("/")])


def test_search_is_reached_and_left_by_keyboard(browser, page):
    browser.open(page)
    everything = browser.value(f"{SHOWN}.length")
    browser.press("/")
    assert browser.value("document.activeElement.id") == "operations-search"
    browser.type("pdp pool2")
    assert browser.value(f"{SHOWN}.length") == 1
    assert browser.value("document.getElementById('operations-count').textContent").startswith("1 of ")
    browser.press("Escape")
    assert browser.value(f"{SHOWN}.length") == everything
    assert browser.value("document.activeElement.tagName") == "BODY"
    assert browser.errors == []


def test_arrow_keys_move_through_the_rows(browser, page):
    browser.open(page)
    browser.value(f"{ROWS}[0].focus()")
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    browser.press("ArrowUp")
    assert browser.value(f"{ROWS}.indexOf(document.activeElement)") == 1
    browser.press("End")
    assert browser.value(f"{ROWS}.indexOf(document.activeElement) === {ROWS}.length - 1")
    assert browser.value("document.querySelectorAll('#operations-table tr[tabindex=\"0\"]').length") == 1


def test_every_section_can_be_reached_and_has_content(browser, page):
    browser.open(page)
    targets = browser.value("Array.from(document.querySelectorAll('nav a')).map(each => each.hash.slice(1))")
    for name in targets:
        assert browser.value(f"document.getElementById('{name}').offsetHeight") > 40


def test_the_schedule_and_feature_maps_are_drawn(browser, page):
    """The screenshot holds the engines' colours, and the pictures decode to their sizes."""
    browser.media(scheme="light")
    browser.open(page)
    pixels = np.asarray(Image.open(io.BytesIO(browser.screenshot())).convert("RGB")).reshape(-1, 3)
    for color in ((0x2F, 0x6F, 0xDE), (0x1A, 0x7F, 0x64), (0xA1, 0x5C, 0x00)):
        assert (pixels == color).all(axis=1).sum() > 1000
    maps = browser.value("Array.from(document.querySelectorAll('img.maps')).map(each => each.naturalWidth)")
    assert len(maps) > 4
    assert min(maps) > 0


def test_a_hostile_loadable_cannot_inject(browser, make, lenet_path, tmp_path):
    """Every text of the file is an attack; the page shows them all, and none runs."""
    loadable = nvdla.load(lenet_path)
    attack = "\"'></title></svg></style><script>window.ran=1</script><img src=x onerror='window.ran=1'>-->\\n{{7*7}}"
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
    path = tmp_path / "hostile.html"
    text = make(hostile).text
    path.write_text(text)
    assert text.count("<script>") == 1
    assert "<img src=x" not in text
    browser.open(path)
    assert browser.value("window.ran") is None
    assert browser.value("document.querySelectorAll('script').length") == 1
    assert browser.value("document.querySelectorAll('img:not(.maps)').length") == 0
    assert browser.value("document.title").startswith(attack.rpartition("/")[2])  # the file without its folders
    assert browser.value("document.querySelector('#overview dd').textContent") == f"net{attack}"
    assert browser.errors == []
