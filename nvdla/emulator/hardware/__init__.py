"""Configurations, register files, the machine and its engines."""

__all__ = ["configuration", "machine", "register_file"]
