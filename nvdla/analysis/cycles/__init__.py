"""How long operations take, and when they run: a calibrated cycle model, a schedule, a trace for viewers."""
