"""Repeated runs: paths, steps, plan, fusing, batches, profile."""

__all__ = ["instances", "plan", "steps"]
