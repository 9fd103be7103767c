/* Board-specific definitions of the runner. Define any of these before this file is included, or in your own header
 * (-DNVDLA_PORT_FILE='"my_board.h"'). The values below are the defaults. */
#ifndef NVDLA_PORT_H
#define NVDLA_PORT_H

#ifdef NVDLA_PORT_FILE
#include NVDLA_PORT_FILE
#endif

/* Address of the accelerator's registers in the processor's address space. */
#ifndef NVDLA_CSB_BASE
#define NVDLA_CSB_BASE 0x10040000u
#endif

/* Register addressing: 0 by byte, 2 by 32-bit word. */
#ifndef NVDLA_CSB_SHIFT
#define NVDLA_CSB_SHIFT 0
#endif
#define NVDLA_CSB_ADDRESS(offset) ((uintptr_t)(NVDLA_CSB_BASE) + ((uintptr_t)(offset) >> NVDLA_CSB_SHIFT))

/* Register accesses; `offset` is in bytes from the start of the CSB. */
#ifndef NVDLA_REG_WRITE
#define NVDLA_REG_WRITE(device, offset, value) \
    ((void)(device), *(volatile uint32_t *)NVDLA_CSB_ADDRESS(offset) = (value))
#endif
#ifndef NVDLA_REG_READ
#define NVDLA_REG_READ(device, offset) ((void)(device), *(volatile uint32_t *)NVDLA_CSB_ADDRESS(offset))
#endif

/* Flush: before the accelerator reads data that the processor wrote.
 * Invalidate: before the processor reads data that the accelerator wrote. */
#ifndef NVDLA_CACHE_FLUSH
#define NVDLA_CACHE_FLUSH(device, start, size) ((void)(device), (void)(start), (void)(size))
#endif
#ifndef NVDLA_CACHE_INVALIDATE
#define NVDLA_CACHE_INVALIDATE(device, start, size) ((void)(device), (void)(start), (void)(size))
#endif

/* Orders memory accesses before register accesses. */
#ifndef NVDLA_BARRIER
#define NVDLA_BARRIER(device) ((void)(device))
#endif

/* Called while the runner waits: nothing when polling, "wait for interrupt" when NVDLA_INTERRUPTS is 1. */
#ifndef NVDLA_IDLE
#define NVDLA_IDLE(device) ((void)(device))
#endif

/* 1: an interrupt handler calls nvdla_interrupt(); 0: the runner polls GLB.S_INTR_STATUS. */
#ifndef NVDLA_INTERRUPTS
#define NVDLA_INTERRUPTS 0
#endif

/* Disable and enable the interrupt handler around a few instructions (NVDLA_INTERRUPTS only). */
#ifndef NVDLA_LOCK
#define NVDLA_LOCK(device) ((void)(device))
#endif
#ifndef NVDLA_UNLOCK
#define NVDLA_UNLOCK(device) ((void)(device))
#endif

/* Polls per event before the runner returns NVDLA_TIMED_OUT; 0: no limit. */
#ifndef NVDLA_POLL_LIMIT
#define NVDLA_POLL_LIMIT 0u
#endif

#endif
