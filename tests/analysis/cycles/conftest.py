import json
from pathlib import Path

import pytest

CYCLES = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "cycles"


@pytest.fixture(scope="session")
def rtl_cycles():
    """Operations measured on the RTL, by configuration."""
    if not CYCLES.is_dir():
        pytest.skip("the measured cycles (../shared/corpus/cycles) are not here")
    return {path.stem: json.loads(path.read_text())["operations"] for path in sorted(CYCLES.glob("nv_*.json"))}
