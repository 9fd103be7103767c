"""Severities compare, sort and print as words."""

import json

from nvdla.checks.lint import Finding
from nvdla.interop.containers.registry import FileFinding
from nvdla.util.registry import AnyFinding, Severity


def test_a_severity_is_its_word():
    assert Severity.ERROR == "error" and f"{Severity.ERROR:>6}" == " error" and str(Severity("note")) == "note"
    assert sorted([Severity.NOTE, Severity.ERROR, Severity.WARNING], key=lambda one: one.rank) == list(Severity)


def test_findings_of_programs_and_of_files_are_of_one_kind():
    finding = Finding(Severity.ERROR, "rule", "headline", "evidence", "advice", 0, 3)
    problem = FileFinding(Severity.NOTE, "header", 8, "message")
    assert all(isinstance(one, AnyFinding) for one in (finding, problem))
    assert json.loads(json.dumps(finding.as_dict()))["severity"] == "error"
    assert problem.as_dict() == {"severity": "note", "where": "header", "offset": 8, "message": "message"}
