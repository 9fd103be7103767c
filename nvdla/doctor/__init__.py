"""Is the network well? Scales, saturation, dead channels, lookup tables, calibration, known compiler faults."""
