/* Runs a register program on NVDLA without an operating system: C99, nothing but <stdint.h>. */
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
    NVDLA_AWAIT,       /* until all bits of value were seen in GLB.S_INTR_STATUS */
    NVDLA_FLUSHED,     /* until bit 0 of the register is set: the convolution buffer is flushed after reset */
    NVDLA_COMPUTE      /* CPU operation number `value` */
};

#define NVDLA_STEP(kind, address) ((uint32_t)(kind) << 24 | (uint32_t)(address))

/* A unit with two register groups: its S_POINTER, and the bits of GLB.S_INTR_STATUS that name its groups. */
typedef struct {
    uint32_t address;
    uint32_t interrupts;
} nvdla_pointer;

/* Bytes that must lie in memory (0: DRAM, 1: CVSRAM) before the program runs; `data` 0: the image is loaded by others. */
typedef struct {
    uint32_t memory;
    uint32_t offset;
    uint32_t size;
    const uint8_t *data;
} nvdla_segment;

/* An input or output: offset and strides in bytes; a real number is scale * element (scale 0: not known). */
typedef struct {
    const char *name;
    uint32_t memory;
    uint32_t offset;
    uint32_t size;
    uint32_t channels, height, width;
    uint32_t element_bytes;
    uint32_t line_stride, surface_stride;
    float scale;
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
    uint32_t memory_size[2];   /* bytes that the program uses: DRAM, CVSRAM */
    uint32_t interrupt_status; /* byte address of GLB.S_INTR_STATUS */
} nvdla_program;

/* One accelerator. `base`: where it sees the memories (multiples of 4096); `memory`: where the processor sees them
 * (0: it does not). `context` is yours. All else starts as 0. */
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
    NVDLA_TIMED_OUT = 1,     /* an event did not come within NVDLA_POLL_LIMIT looks */
    NVDLA_NO_MEMORY = 2,     /* the processor must reach a memory that it does not see */
    NVDLA_BAD_PROGRAM = 3
};

/* Copies the segments into memory; once is enough as long as nobody overwrites them. */
int nvdla_load(nvdla_device *device, const nvdla_program *program);

/* Runs the program. Inputs lie in memory, flushed from the caches, before; outputs after. */
int nvdla_run(nvdla_device *device, const nvdla_program *program);

/* To be called by the interrupt handler when NVDLA_INTERRUPTS is 1. */
void nvdla_interrupt(nvdla_device *device);

/* Where the processor sees a tensor; 0 when it does not. */
uint8_t *nvdla_tensor_bytes(const nvdla_device *device, const nvdla_tensor *tensor);

/* CRC-32 as in zip, for self-tests. */
uint32_t nvdla_crc32(const uint8_t *bytes, uint32_t size);

/* A CPU operation (nvdla_cpu.c). */
int nvdla_compute(nvdla_device *device, const nvdla_cpu_operation *operation);

#endif
