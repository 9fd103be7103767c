"""The convolution pipeline: CDMA, CBUF, CSC, CMAC, CACC."""

__all__ = ["checks", "engine"]
