"""Is the network sound? Scales, saturation, dead channels, lookup tables, calibration, known compiler faults."""

__all__ = ["examination", "health"]
