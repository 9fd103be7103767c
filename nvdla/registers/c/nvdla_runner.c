#include "nvdla_runner.h"
#include "nvdla_port.h"

#define CONSUMER_BIT 16

static uint32_t take_interrupts(nvdla_device *device) {
    uint32_t status = NVDLA_REG_READ(device, device->interrupt_status);
    if (status != 0u) {
        NVDLA_REG_WRITE(device, device->interrupt_status, status);
    }
    return status;
}

void nvdla_interrupt(nvdla_device *device) {
    device->seen |= take_interrupts(device);
}

/* After an odd number of operations a unit continues with its other group: swap the two interrupt bits of the unit. */
static uint32_t in_this_run(const nvdla_device *device, uint32_t interrupts) {
    uint32_t moved = interrupts & device->swapped;
    uint32_t swapped = (moved & 0x55555555u) << 1 | (moved >> 1 & 0x55555555u);
    return (interrupts & ~device->swapped) | swapped;
}

static int await_interrupts(nvdla_device *device, uint32_t wanted) {
    uint32_t polls = 0;
    while ((device->seen & wanted) != wanted) {
        if (NVDLA_POLL_LIMIT != 0u && polls == NVDLA_POLL_LIMIT) {
            return NVDLA_TIMED_OUT;
        }
        polls++;
#if NVDLA_INTERRUPTS
        NVDLA_IDLE(device);
#else
        device->seen |= take_interrupts(device);
        if ((device->seen & wanted) != wanted) {
            NVDLA_IDLE(device);
        }
#endif
    }
    NVDLA_LOCK(device);
    device->seen &= ~wanted;
    NVDLA_UNLOCK(device);
    return NVDLA_OK;
}

static int await_flush(nvdla_device *device, uint32_t address) {
    uint32_t polls = 0;
    while ((NVDLA_REG_READ(device, address) & 1u) == 0u) {
        if (NVDLA_POLL_LIMIT != 0u && polls == NVDLA_POLL_LIMIT) {
            return NVDLA_TIMED_OUT;
        }
        polls++;
    }
    return NVDLA_OK;
}

/* Find the first group of each unit from its consumer pointer. */
static void begin(nvdla_device *device, const nvdla_program *program) {
    uint32_t index;
    device->interrupt_status = program->interrupt_status;
    device->seen = 0;
    device->swapped = 0;
    device->pointer_swapped = 0;
    for (index = 0; index < program->pointer_count; index++) {
        const nvdla_pointer *pointer = &program->pointers[index];
        if ((NVDLA_REG_READ(device, pointer->address) >> CONSUMER_BIT & 1u) != 0u) {
            device->swapped |= pointer->interrupts;
            device->pointer_swapped |= 1u << index;
        }
    }
}

static void write_address(nvdla_device *device, uint32_t register_address, uint32_t kind, uint32_t offset) {
    uint32_t half = kind - (uint32_t)NVDLA_DRAM_LOW;
    uint64_t address = device->base[half >> 1] + offset;
    NVDLA_REG_WRITE(device, register_address, (uint32_t)((half & 1u) != 0u ? address >> 32 : address));
}

static int run_step(nvdla_device *device, const nvdla_program *program, uint32_t what, uint32_t value) {
    uint32_t kind = what >> 24;
    uint32_t address = what & 0xffffffu;
    switch (kind) {
    case NVDLA_WRITE:
        NVDLA_REG_WRITE(device, address, value);
        return NVDLA_OK;
    case NVDLA_POINTER:
        NVDLA_REG_WRITE(device, address, (value & 1u) ^ (device->pointer_swapped >> (value >> 8) & 1u));
        return NVDLA_OK;
    case NVDLA_DRAM_LOW:
    case NVDLA_DRAM_HIGH:
    case NVDLA_CVSRAM_LOW:
    case NVDLA_CVSRAM_HIGH:
        write_address(device, address, kind, value);
        return NVDLA_OK;
    case NVDLA_AWAIT:
        return await_interrupts(device, in_this_run(device, value));
    case NVDLA_FLUSHED:
        return await_flush(device, address);
    case NVDLA_COMPUTE:
        return value < program->cpu_operation_count ? nvdla_compute(device, &program->cpu_operations[value])
                                                    : NVDLA_BAD_PROGRAM;
    default:
        return NVDLA_BAD_PROGRAM;
    }
}

int nvdla_run(nvdla_device *device, const nvdla_program *program) {
    uint32_t index;
    begin(device, program);
    NVDLA_BARRIER(device);
    for (index = 0; index < program->step_count; index++) {
        int result = run_step(device, program, program->steps[index].what, program->steps[index].value);
        if (result != NVDLA_OK) {
            return result;
        }
    }
    NVDLA_BARRIER(device);
    for (index = 0; index < program->output_count; index++) {
        uint8_t *bytes = nvdla_tensor_bytes(device, &program->outputs[index]);
        if (bytes != 0) {
            NVDLA_CACHE_INVALIDATE(device, bytes, program->outputs[index].size);
        }
    }
    return NVDLA_OK;
}

int nvdla_load(nvdla_device *device, const nvdla_program *program) {
    uint32_t index;
    for (index = 0; index < program->segment_count; index++) {
        const nvdla_segment *segment = &program->segments[index];
        uint8_t *target = device->memory[segment->memory];
        uint32_t at;
        if (segment->data == 0) {
            continue;
        }
        if (target == 0) {
            return NVDLA_NO_MEMORY;
        }
        target += segment->offset;
        for (at = 0; at < segment->size; at++) {
            target[at] = segment->data[at];
        }
        NVDLA_CACHE_FLUSH(device, target, segment->size);
    }
    NVDLA_BARRIER(device);
    return NVDLA_OK;
}

uint8_t *nvdla_tensor_bytes(const nvdla_device *device, const nvdla_tensor *tensor) {
    uint8_t *memory = device->memory[tensor->memory];
    return memory == 0 ? 0 : memory + tensor->offset;
}

uint32_t nvdla_crc32(const uint8_t *bytes, uint32_t size) {
    uint32_t crc = 0xffffffffu;
    uint32_t at;
    int bit;
    for (at = 0; at < size; at++) {
        crc ^= bytes[at];
        for (bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ ((crc & 1u) != 0u ? 0xedb88320u : 0u);
        }
    }
    return ~crc;
}
