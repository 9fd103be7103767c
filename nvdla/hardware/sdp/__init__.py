"""The single-point data processor."""
