"""The arithmetic of the engines: pure functions on arrays."""

__all__ = [
    "cdp",
    "conv",
    "floats",
    "fp16_mac",
    "integers",
    "pdp",
    "sdp",
    "sdp_float",
    "sdp_lut",
    "winograd",
    "winograd_fp16",
]
