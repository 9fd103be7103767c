/* Self-tests of register programs and their log: C99, nothing but <stdint.h>. `nvdla csb verify LOG` reads the log. */
#ifndef NVDLA_TESTS_H
#define NVDLA_TESTS_H

#include "nvdla_runner.h"

typedef struct {
    const char *engine;
    const char *mode;
    const char *precision;
    const nvdla_program *program;
    int (*run)(nvdla_device *device);
    const uint32_t *crcs; /* expected CRC-32 of each output */
} nvdla_test;

/* The generated file nvdla_tests_table.c defines these. */
extern const char nvdla_tests_config[];
extern const nvdla_test nvdla_tests[];
extern const uint32_t nvdla_tests_count;

/* Runs all tests and logs one line per test. Returns the number of tests that failed. */
int nvdla_run_tests(nvdla_device *device, void (*print)(const char *text));

#endif
