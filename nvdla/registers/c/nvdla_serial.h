/* Registers of `nvdla serve --registers` over a serial line: C99, nothing but <stdint.h>.
 * The board defines nvdla_serial_put, nvdla_serial_get and nvdla_serial_failed. */
#ifndef NVDLA_SERIAL_H
#define NVDLA_SERIAL_H

#include <stdint.h>

void nvdla_serial_put(uint8_t byte);
uint8_t nvdla_serial_get(void);
void nvdla_serial_failed(const char *message);

/* Register accesses by byte address. The next read reports an error of a write through nvdla_serial_failed. */
void nvdla_serial_write(uint32_t address, uint32_t value);
uint32_t nvdla_serial_read(uint32_t address);

/* Waits until the hardware is idle. Returns the unmasked bits of GLB.S_INTR_STATUS. */
uint32_t nvdla_serial_wait(void);

#define NVDLA_REG_WRITE(device, offset, value) ((void)(device), nvdla_serial_write((offset), (value)))
#define NVDLA_REG_READ(device, offset) ((void)(device), nvdla_serial_read((offset)))
#if defined(NVDLA_INTERRUPTS) && NVDLA_INTERRUPTS
#define NVDLA_IDLE(device) (nvdla_serial_wait() != 0u ? nvdla_interrupt(device) : (void)0)
#endif

#endif
