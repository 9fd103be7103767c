"""Where the memory of a loadable goes: placement, lifetimes, reuse, overlaps, peak."""
