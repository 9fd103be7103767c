"""How a run is repeated: steps, plan, fusing, batches, profile."""
