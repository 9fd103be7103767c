/* Runs a network of a model library as a register program: `nvdla program NAME.nvdla --format c` writes the program and
 * its runner. No driver and no firmware is needed.
 *
 *     static nvdla_device device;                     (see nvdla_runner.h)
 *     static nvdla_registers_t registers;
 *     static nvdla_platform_t platform;
 *     registers.device = &device;
 *     registers.program = &NAME;
 *     registers.places = tvmgen_NAME_places;
 *     registers.num_places = tvmgen_NAME_num_places;
 *     registers.last_task = tvmgen_NAME_last_task;
 *     nvdla_registers_platform(&platform, &registers);
 *     tvmgen_NAME_set_platform(&platform);
 */
#ifndef NVDLA_REGISTERS_H_
#define NVDLA_REGISTERS_H_

#include <nvdla_crt.h>

#include "nvdla_runner.h"

typedef struct {
  nvdla_device* device;
  const nvdla_program* program;
  const nvdla_place_t* places;
  uint32_t num_places;
  uint32_t last_task;
} nvdla_registers_t;

void nvdla_registers_platform(nvdla_platform_t* platform, nvdla_registers_t* registers);

#endif /* NVDLA_REGISTERS_H_ */
