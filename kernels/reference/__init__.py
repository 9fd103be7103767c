"""The specification of NVDLA's arithmetic in plain Python: one file per engine.

Every function takes and returns Python integers (bit patterns for floating point) and lists of them. Nothing here is
fast, and nothing is imported from the other kernels: these files state what the hardware computes, with the line of
NVIDIA's C model (``cmod/`` of the hardware repository, branch nvdlav1) that it comes from. All other kernels are
compared with them (``tests/kernels``), and ``NVDLA_VALIDATE=reference`` compares whole runs.

* ``integers.py``, ``floats.py``: number formats, rounding, saturation.
* ``conv.py``: CDMA converter, CSC sequence, CMAC and CACC of integers.
* ``fp16_mac.py``: CMAC and CACC in fp16.
* ``winograd.py``: Winograd transforms and sums.
* ``sdp.py``, ``sdp_lut.py``: X1, X2, Y, output converter; lookup tables.
* ``pdp.py``: pooling.
* ``cdp.py``: local response normalization.
* ``rubik.py``: data reshape.
* ``softmax.py``: the CPU's softmax.
"""

__all__ = [
    "cdp",
    "conv",
    "floats",
    "fp16_mac",
    "integers",
    "pdp",
    "rubik",
    "sdp",
    "sdp_lut",
    "softmax",
    "winograd",
]
