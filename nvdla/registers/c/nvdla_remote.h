/* A client of `nvdla serve --registers`, and the runner's port to it: POSIX, C99.
 *
 *     nvdla_remote remote;
 *     static nvdla_device device;
 *     if (nvdla_remote_open(&remote, "/tmp/nvdla.sock") != 0) { ... }
 *     device.context = &remote;
 *     device.base[0] = 0xc0000000u;
 *     device.memory[0] = nvdla_remote_map("/dev/shm/dram", size);
 *     result = nvdla_run(&device, &network);
 *
 * Compile the runner with -DNVDLA_PORT_FILE='"nvdla_remote.h"'. */
#ifndef NVDLA_REMOTE_H
#define NVDLA_REMOTE_H

#include <stdint.h>

typedef struct {
    int socket;
    uint32_t filled;
    unsigned char buffer[12 * 512];
} nvdla_remote;

/* 0, or -1 with errno. */
int nvdla_remote_open(nvdla_remote *remote, const char *path);
void nvdla_remote_close(nvdla_remote *remote);

/* A file as memory that both sides see; 0 with errno where that fails. */
uint8_t *nvdla_remote_map(const char *path, uint32_t size);

/* Register accesses by byte address. A write is posted: what is wrong with it is told by the next read, which prints
 * the server's message and ends the program. */
void nvdla_remote_write(nvdla_remote *remote, uint32_t address, uint32_t value);
uint32_t nvdla_remote_read(nvdla_remote *remote, uint32_t address);

/* Lets the hardware work until it stands still; the unmasked bits of GLB.S_INTR_STATUS. */
uint32_t nvdla_remote_wait(nvdla_remote *remote);

#define NVDLA_REG_WRITE(device, offset, value) nvdla_remote_write((device)->context, (offset), (value))
#define NVDLA_REG_READ(device, offset) nvdla_remote_read((device)->context, (offset))
#if defined(NVDLA_INTERRUPTS) && NVDLA_INTERRUPTS
#define NVDLA_IDLE(device) (nvdla_remote_wait((device)->context) != 0u ? nvdla_interrupt(device) : (void)0)
#endif

#endif
