"""Scales: calibration, models that bring theirs, QDQ out, mixed precision, what it cost."""
