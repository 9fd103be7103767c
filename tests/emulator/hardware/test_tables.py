"""The JSON that the toolkit reads is the YAML that people read."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
LOCATION = importlib.util.spec_from_file_location("tables", ROOT / "tools" / "tables.py")
tables = importlib.util.module_from_spec(LOCATION)
LOCATION.loader.exec_module(tables)


def test_every_table_is_there():
    assert {source.name for source in tables.sources()} == {
        "configurations.yaml",
        "nv_full.yaml",
        "nv_small.yaml",
        "proof.yaml",
    }


@pytest.mark.parametrize("source", tables.sources(), ids=lambda source: source.stem)
def test_json_and_yaml_say_the_same(source):
    written = source.with_suffix(".json").read_text(encoding="utf-8")
    assert json.loads(written) == yaml.safe_load(source.read_text(encoding="utf-8")), "run tools/tables.py"
    assert written == tables.json_of(source)
