"""docs/doctor-checks.md, from the docstrings of the checks."""

from __future__ import annotations

from lint_rules import page

from nvdla.doctor.examination import checks

CHAPTERS = {
    "number": "Scales, weights, biases",
    "run": "What a run shows",
    "calibration": "The calibration table",
    "fault": "Compiler faults and CPU layers",
}
INTRODUCTION = """# Checks of `nvdla doctor`

Made from the checks' docstrings by `python tools/pages/doctor_checks.py`; do not edit. A heading is what
`nvdla doctor` prints: what is wrong, and in brackets the name of the check. Below stands how it should be, and what to
do where it is not. An *error* means that results are wrong, a *warning* that they probably are, a *note* is worth
knowing. The doctor applies the rules of [`nvdla lint`](lint-rules.md) too."""


def doctor_page() -> str:
    """docs/doctor-checks.md."""
    return page(INTRODUCTION, CHAPTERS, checks())


if __name__ == "__main__":
    print(doctor_page(), end="")
