/* Runs a register program on NVDLA without an operating system: C99, needs only <stdint.h>. */
#ifndef NVDLA_RUNNER_H
#define NVDLA_RUNNER_H

#include <stdint.h>

/* A step: the kind in the upper 8 bits of `what`, a byte address on the CSB (or an index) in the lower 24. */
typedef struct {
    uint32_t what;
    uint32_t value;
} nvdla_step;

enum {
    NVDLA_WRITE,       /* value to the register */
    NVDLA_POINTER,     /* a producer pointer: value is group | index in `pointers` << 8 */
    NVDLA_DRAM_LOW,    /* lower half of the address of byte `value` of the DRAM */
    NVDLA_DRAM_HIGH,   /* upper half */
    NVDLA_CVSRAM_LOW,  /* the same in the CVSRAM */
    NVDLA_CVSRAM_HIGH,
    NVDLA_AWAIT,       /* wait until all bits of value were set in GLB.S_INTR_STATUS */
    NVDLA_FLUSHED,     /* wait until bit 0 of the register is set: the convolution buffer is flushed after reset */
    NVDLA_COMPUTE      /* CPU operation number `value` */
};

#define NVDLA_STEP(kind, address) ((uint32_t)(kind) << 24 | (uint32_t)(address))

/* A unit with two register groups: its S_POINTER, and the bits of GLB.S_INTR_STATUS for its groups. */
typedef struct {
    uint32_t address;
    uint32_t interrupts;
} nvdla_pointer;

/* Bytes that must be in memory (0: DRAM, 1: CVSRAM) before the program runs.
 * If `data` is 0, the caller loads the image. */
typedef struct {
    uint32_t memory;
    uint32_t offset;
    uint32_t size;
    const uint8_t *data;
} nvdla_segment;

/* An input or output: offset and strides in bytes; real = scale * (element - zero_point) (scale 0: unknown, or not the
 * same in all channels). The element of channel c in line y and column x is at the byte
 *   pixels:   y * line_stride + x * bytes per pixel + position of c in the pixel
 *   features: c / n * surface_stride + y * line_stride + (x * n + c % n) * element_bytes
 * The comment in the header of the program states the pixel format, or the channels n of an atom. */
typedef struct {
    const char *name;
    uint32_t memory;
    uint32_t offset;
    uint32_t size;
    uint32_t channels, height, width;
    uint32_t element_bytes;
    uint32_t line_stride, surface_stride;
    float scale;
    int32_t zero_point;
} nvdla_tensor;

typedef struct {
    uint32_t memory;
    uint32_t offset;
    uint32_t size;
    uint32_t atom;
    uint32_t channels, height, width;
    uint32_t line_stride, surface_stride;
} nvdla_cpu_cube;

enum { NVDLA_SOFTMAX, NVDLA_POWER };

typedef struct {
    uint32_t kind;
    uint32_t half; /* 1: fp16 elements, 0: int8 */
    nvdla_cpu_cube source;
    nvdla_cpu_cube destination;
    float input_scale, output_scale;
    float shift, scale, power;
} nvdla_cpu_operation;

typedef struct {
    const nvdla_step *steps;
    uint32_t step_count;
    const nvdla_pointer *pointers;
    uint32_t pointer_count;
    const nvdla_segment *segments;
    uint32_t segment_count;
    const nvdla_tensor *inputs;
    uint32_t input_count;
    const nvdla_tensor *outputs;
    uint32_t output_count;
    const nvdla_cpu_operation *cpu_operations;
    uint32_t cpu_operation_count;
    uint32_t memory_size[2];   /* bytes of the DRAM and the CVSRAM, with their unused parts */
    uint32_t interrupt_status; /* byte address of GLB.S_INTR_STATUS */
} nvdla_program;

/* One accelerator. `base`: addresses of the memories for the accelerator (multiples of 4096); `memory`: their addresses
 * for the processor (0: not accessible). `context` is for the application. All other fields must start as 0. */
typedef struct {
    uint64_t base[2];
    uint8_t *memory[2];
    void *context;
    volatile uint32_t seen;
    uint32_t swapped;
    uint32_t pointer_swapped;
    uint32_t interrupt_status;
} nvdla_device;

enum {
    NVDLA_OK = 0,
    NVDLA_TIMED_OUT = 1,     /* an event did not occur within NVDLA_POLL_LIMIT polls */
    NVDLA_NO_MEMORY = 2,     /* the processor needs a memory that it cannot access */
    NVDLA_BAD_PROGRAM = 3
};

/* Copy the segments into memory. Once is enough unless they are overwritten. */
int nvdla_load(nvdla_device *device, const nvdla_program *program);

/* Run the program. The inputs must be in memory and flushed from the caches; the outputs are in memory afterwards. */
int nvdla_run(nvdla_device *device, const nvdla_program *program);

/* Call this from the interrupt handler if NVDLA_INTERRUPTS is 1. */
void nvdla_interrupt(nvdla_device *device);

/* Return the address of a tensor for the processor, or 0 if it cannot access the tensor. */
uint8_t *nvdla_tensor_bytes(const nvdla_device *device, const nvdla_tensor *tensor);

/* CRC-32 as in zip, for self-tests. */
uint32_t nvdla_crc32(const uint8_t *bytes, uint32_t size);

/* A CPU operation (nvdla_cpu.c). */
int nvdla_compute(nvdla_device *device, const nvdla_cpu_operation *operation);

#endif
