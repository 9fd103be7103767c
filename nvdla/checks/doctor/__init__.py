"""Checks of a quantized network: scales, saturation, dead channels, lookup tables, calibration, compiler bugs."""

from nvdla.checks.doctor.doctor import DoctorReport, examine

__all__ = ["DoctorReport", "examine"]
