"""The arithmetic of the engines: pure functions on arrays."""

__all__ = [
    "cdp",
    "cdp_fp16",
    "conv",
    "conversion",
    "floats",
    "fp16_mac",
    "integers",
    "pdp",
    "pdp_fp16",
    "sdp",
    "sdp_float",
    "sdp_fp16_output",
    "sdp_lut",
    "sdp_y",
    "winograd",
    "winograd_fp16",
]
