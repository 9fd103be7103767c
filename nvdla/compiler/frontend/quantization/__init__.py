"""Scales: calibration, models that bring theirs, QDQ out, mixed precision, what it cost."""

__all__ = ["calibrate", "export", "mixed"]
