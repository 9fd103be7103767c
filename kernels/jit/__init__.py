"""Compiling kernels and keeping them compiled."""
