"""Other container formats and the ONNX backend."""

__all__: list[str] = []
