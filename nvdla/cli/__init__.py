"""Commands, one file each: arguments and printing."""

__all__ = ["entry", "main"]
