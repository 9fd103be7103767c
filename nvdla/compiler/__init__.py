"""From a model to a loadable: front ends, quantization and the builder."""

__all__: list[str] = []
