"""Compiling kernels and keeping them compiled."""

__all__ = ["cache_folder", "compilation", "processor", "thread_pool"]
