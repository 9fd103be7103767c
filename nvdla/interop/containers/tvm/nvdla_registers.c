/* The platform of nvdla_registers.h. Memories are at the places that the register program has for them. */
#include "nvdla_registers.h"

#include "nvdla_port.h"

enum { NO_MEMORY = 0x503, RUN_FAILED = 0x505 };

/* Where the processor sees `size` bytes of a memory; NULL where it does not, or where they leave the program's memory. */
static uint8_t* bytes_of(const nvdla_registers_t* registers, uint32_t memory, uint64_t offset, uint64_t size) {
  uint32_t i;
  for (i = 0; i < registers->num_places; ++i) {
    const nvdla_place_t* place = &registers->places[i];
    if (place->memory == memory) {
      const uint64_t limit = registers->program->memory_size[place->domain & 1u];
      uint8_t* const start = registers->device->memory[place->domain & 1u];
      if (start == NULL || place->offset + offset > limit || size > limit - place->offset - offset) {
        return NULL;
      }
      return start + place->offset + offset;
    }
  }
  return NULL;
}

static int32_t allocate(void* context, const nvdla_memory_t* memory) {
  nvdla_registers_t* registers = (nvdla_registers_t*)context;
  uint8_t* bytes = bytes_of(registers, memory->id, 0, memory->size);
  uint64_t i;
  if (bytes == NULL) {
    return NO_MEMORY;
  }
  for (i = 0; i < memory->size; ++i) {
    bytes[i] = 0;
  }
  NVDLA_CACHE_FLUSH(registers->device, bytes, (uint32_t)memory->size);
  return NVDLA_CRT_OK;
}

static int32_t release(void* context, uint32_t memory) {
  (void)context;
  (void)memory;
  return NVDLA_CRT_OK;
}

static int32_t write_bytes(void* context, uint32_t memory, uint64_t offset, const void* data, uint64_t size) {
  nvdla_registers_t* registers = (nvdla_registers_t*)context;
  uint8_t* bytes = bytes_of(registers, memory, offset, size);
  uint64_t i;
  if (bytes == NULL) {
    return NO_MEMORY;
  }
  for (i = 0; i < size; ++i) {
    bytes[i] = ((const uint8_t*)data)[i];
  }
  NVDLA_CACHE_FLUSH(registers->device, bytes, (uint32_t)size);
  return NVDLA_CRT_OK;
}

static int32_t read_bytes(void* context, uint32_t memory, uint64_t offset, void* data, uint64_t size) {
  nvdla_registers_t* registers = (nvdla_registers_t*)context;
  const uint8_t* bytes = bytes_of(registers, memory, offset, size);
  uint64_t i;
  if (bytes == NULL) {
    return NO_MEMORY;
  }
  NVDLA_CACHE_INVALIDATE(registers->device, bytes, (uint32_t)size);
  for (i = 0; i < size; ++i) {
    ((uint8_t*)data)[i] = bytes[i];
  }
  return NVDLA_CRT_OK;
}

/* The program has the work of all tasks, so it runs in place of the last one. */
static int32_t submit(void* context, const nvdla_task_t* task) {
  nvdla_registers_t* registers = (nvdla_registers_t*)context;
  if (task->id != registers->last_task) {
    return NVDLA_CRT_OK;
  }
  return nvdla_run(registers->device, registers->program) == NVDLA_OK ? NVDLA_CRT_OK : RUN_FAILED;
}

void nvdla_registers_platform(nvdla_platform_t* platform, nvdla_registers_t* registers) {
  platform->context = registers;
  platform->allocate = allocate;
  platform->release = release;
  platform->write = write_bytes;
  platform->read = read_bytes;
  platform->submit = submit;
}
