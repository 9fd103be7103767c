"""The committed FlatBuffers bindings are exactly what the documented command makes of the schemas."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPT = REPOSITORY / "fbs" / "regenerate.py"


def regenerate_module():
    spec = importlib.util.spec_from_file_location("regenerate", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


needs_flatc = pytest.mark.skipif(shutil.which("flatc") is None, reason="flatc is not installed")


@needs_flatc
def test_committed_bindings_are_what_flatc_makes() -> None:
    module = regenerate_module()
    if module.flatc_version() != module.FLATC_VERSION:
        pytest.skip(f"flatc is {module.flatc_version()}, the committed bindings were made by {module.FLATC_VERSION}")
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "bindings are up to date\n")


@needs_flatc
def test_a_changed_schema_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = regenerate_module()
    text = (REPOSITORY / "fbs" / "loadable.fbs").read_text()
    (tmp_path / "fbs").mkdir()
    (tmp_path / "fbs" / "loadable.fbs").write_text(text.replace("EMU1 = 2", "EMU1 = 3"))
    target = tmp_path / "nvdla/loadable/generated"
    shutil.copytree(REPOSITORY / "nvdla/loadable/generated", target)
    monkeypatch.setattr(module, "HERE", tmp_path / "fbs")
    assert len(module.stale("loadable.fbs", "nvdla/loadable/generated")) == 1


def test_every_schema_has_committed_bindings() -> None:
    module = regenerate_module()
    for schema, target in module.SCHEMAS.items():
        assert (REPOSITORY / "fbs" / schema).is_file()
        assert list((REPOSITORY / target).glob("*_generated.py"))
