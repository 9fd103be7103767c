"""FlatBuffers bindings made by flatc from fbs/tflite.fbs (``python fbs/regenerate.py``); never edited by hand."""

__all__ = ["tflite_generated"]
