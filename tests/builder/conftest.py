"""Every network of these tests runs twice: the second run takes the fast path, and must give the same bytes."""

from __future__ import annotations

import pytest

from nvdla.runtime import Runtime


@pytest.fixture(autouse=True)
def every_network_runs_twice(monkeypatch):
    """Each ``run`` and ``run_raw`` is repeated on the same inputs."""
    once = Runtime._run_image

    def twice(self, given, *settings, **named):
        outputs = once(self, given, *settings, **named)
        again = once(self, given)
        assert [bytes(each) for each in again] == [bytes(each) for each in outputs]
        return outputs

    monkeypatch.setattr(Runtime, "_run_image", twice)
