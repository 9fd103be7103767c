"""Compiling kernels and keeping them compiled."""

__all__ = ["cache_folder", "compilation", "cores", "crew"]
