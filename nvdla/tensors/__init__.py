"""Tensors at the edge: images, .npy, .dimg and raw surfaces, and what to say about a result."""

__all__ = ["convert", "files", "images", "inputs", "real"]
