/* Declarations of the standalone library that the project uses. */
#include "xil_types.h"
void Xil_Out32(UINTPTR Addr, u32 Value);
u32 Xil_In32(UINTPTR Addr);
