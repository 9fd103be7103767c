#include <stdint.h>
uint32_t sys_read32(uintptr_t addr);
void sys_write32(uint32_t data, uintptr_t addr);
