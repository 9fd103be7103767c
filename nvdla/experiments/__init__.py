"""Campaigns over data sets, faults and design spaces."""

__all__: list[str] = []
