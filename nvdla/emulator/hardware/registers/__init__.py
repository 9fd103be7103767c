"""Register maps of the hardware generations (YAML, and JSON made from it)."""

__all__: list[str] = []
