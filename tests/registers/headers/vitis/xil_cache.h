#ifndef XIL_CACHE_H
#define XIL_CACHE_H
#include "xil_types.h"
void Xil_DCacheEnable(void);
void Xil_DCacheInvalidateRange(INTPTR adr, u32 len);
void Xil_DCacheFlushRange(INTPTR adr, u32 len);
#endif
