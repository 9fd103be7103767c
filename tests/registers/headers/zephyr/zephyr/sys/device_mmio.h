#include <stddef.h>
#include <stdint.h>
#define K_MEM_CACHE_NONE 0
#define K_MEM_CACHE_WB 1
typedef uintptr_t mm_reg_t;
#ifdef CONFIG_MMU
#define DEVICE_MMIO_IS_IN_RAM 1
void device_map(mm_reg_t *virt_addr, uintptr_t phys_addr, size_t size, uint32_t flags);
#endif
