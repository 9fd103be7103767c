"""How a run is repeated: steps, plan, fusing, batches, profile."""

__all__ = ["instances", "plan", "steps"]
