"""Every network of these tests runs twice: the second run takes the fast path, and must give the same bytes. Lint
accepts every loadable that ``build`` returns."""

from __future__ import annotations

import pytest

from nvdla.checks.lint import lint
from nvdla.compiler.builder import compiler
from nvdla.emulator.hardware.configuration import configurations
from nvdla.runtime import Runtime


@pytest.fixture(autouse=True)
def every_network_runs_twice(monkeypatch):
    """Each ``run`` and ``run_raw`` is repeated on the same inputs."""
    once = Runtime._run_next

    def twice(self, images, *settings, **named):
        outputs = once(self, images, *settings, **named)
        again = once(self, images[:1])
        assert [bytes(each) for each in again[0]] == [bytes(each) for each in outputs[0]]
        return outputs

    monkeypatch.setattr(Runtime, "_run_next", twice)


@pytest.fixture(autouse=True)
def lint_accepts_every_built_loadable(monkeypatch):
    """Lint each loadable that ``build`` makes for a known configuration: no rule finds an error."""
    emit = compiler.emit

    def checked(program, config, *rest):
        emitted = emit(program, config, *rest)
        if config.name in configurations():
            findings = lint(emitted[0], config.name, dry=False).findings
            assert not [str(finding) for finding in findings if finding.severity == "error"]
        return emitted

    monkeypatch.setattr(compiler, "emit", checked)
