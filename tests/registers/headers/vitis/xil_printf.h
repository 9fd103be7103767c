void xil_printf(const char *ctrl1, ...);
