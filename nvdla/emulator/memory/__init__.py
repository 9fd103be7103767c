"""The address space, the linker, layouts of surfaces and weights."""

__all__ = ["address_space", "linker", "surfaces"]
