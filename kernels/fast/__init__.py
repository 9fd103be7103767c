"""Forms of rules that are fast, and equal to the rule under a stated bound."""

__all__ = ["cdp_int8", "conv_int8_dot", "conv_sdp_int8", "fp16_pixels", "sdp_int8_add"]
