"""The convolution pipeline: CDMA, CBUF, CSC, CMAC, CACC."""
