"""onnxruntime as a reference: sessions whose int8 products are exact on every processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def exact_session(model: Any) -> Any:
    """A session of a ModelProto, its bytes, or a file.

    By default, onnxruntime's optimized int8 products saturate on processors with AVX2 alone: wrong by many units.
    """
    import onnxruntime

    data = Path(model).read_bytes() if isinstance(model, str | Path) else model
    data = data if isinstance(data, bytes) else data.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", str(int(b"QLinear" not in data)))
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
