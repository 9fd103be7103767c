from pathlib import Path

import pytest
from support.browser import Window

import nvdla
from nvdla.analysis.study import Study
from nvdla.program.naming import names_for
from nvdla.report.document import make_side
from nvdla.report.page import Data, html_page

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


def side_of(loadable, path=None, image=None, sides=1, layers=None):
    """A loadable as a side of the page, with a run on an image."""
    names = names_for(path) if path else names_for("nothing")
    study = Study.of(loadable, layers=layers or names.layers)
    inputs = (lambda runtime: [runtime.surfaces(image)]) if image else None
    return make_side(study, names, 1000.0, inputs, sides=sides)[0]


@pytest.fixture(scope="session")
def side():
    return side_of


@pytest.fixture(scope="session")
def lenet_path():
    return SAMPLES / "lenet.loadable"


@pytest.fixture(scope="session")
def digit_path():
    return SAMPLES / "digit7.pgm"


@pytest.fixture(scope="session")
def lenet_data(lenet_path, digit_path):
    """What the page says of LeNet's run on a digit."""
    return Data.of([side_of(nvdla.load(lenet_path), lenet_path, str(digit_path))])


@pytest.fixture(scope="session")
def page(tmp_path_factory, lenet_data):
    """LeNet's page, as a file."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html_page(lenet_data), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def both(tmp_path_factory, lenet_path, digit_path):
    """LeNet in int8 and in fp16, side by side, as a file."""
    paths = [lenet_path, lenet_path.with_name("lenet_nv_full_fp16.loadable")]
    sides = [side_of(nvdla.load(path), path, str(digit_path), 2) for path in paths]
    path = tmp_path_factory.mktemp("report") / "both.html"
    path.write_text(html_page(Data.of(sides)), encoding="utf-8")
    return path


@pytest.fixture
def window(chromium_browser):
    """``window(...)`` opens a window; all are closed in the end."""
    opened = []

    def open_one(**how):
        opened.append(Window(chromium_browser, **how))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()
