"""Checks of loadables: lint, doctor, diff, compare and the recognition of layers."""

__all__: list[str] = []
