"""The first call of a kernel compiles it, so a time limit on single examples would fail at random."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")
