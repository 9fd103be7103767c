from pathlib import Path

import pytest
from support.browser import Browser, chromium

import nvdla
from nvdla.analysis.study import Study
from nvdla.program.naming import names_for
from nvdla.report.page import make_report
from nvdla.report.run import examine_and_run

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


def report_of(loadable, path=None, image=None):
    """The report of a loadable, with a run on an image."""
    names = names_for(path) if path else names_for("nothing")
    study = Study.of(loadable, layers=names.layers)
    inputs = (lambda runtime: [runtime.surfaces(image)]) if image else None
    return make_report(study, *examine_and_run(study, names, inputs), clock=1000.0)


@pytest.fixture(scope="session")
def make():
    return report_of


@pytest.fixture(scope="session")
def lenet_path():
    return SAMPLES / "lenet.loadable"


@pytest.fixture(scope="session")
def digit_path():
    return SAMPLES / "digit7.pgm"


@pytest.fixture(scope="session")
def page(tmp_path_factory, lenet_path, digit_path):
    """LeNet's report on a digit, as a file."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_of(nvdla.load(lenet_path), lenet_path, str(digit_path)).text)
    return path


@pytest.fixture
def browser(tmp_path):
    if chromium() is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    opened = Browser(tmp_path / "profile")
    yield opened
    opened.close()
