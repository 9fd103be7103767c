#include "nvdla_tests.h"

static void print_number(void (*print)(const char *text), uint32_t value) {
    char text[11];
    uint32_t at = sizeof text - 1u;
    text[at] = '\0';
    do {
        text[--at] = (char)('0' + (int)(value % 10u));
        value /= 10u;
    } while (value != 0u);
    print(&text[at]);
}

static void print_crc(void (*print)(const char *text), uint32_t value) {
    char text[] = "0x00000000";
    uint32_t at;
    for (at = 0; at < 8u; at++) {
        text[2u + at] = "0123456789abcdef"[value >> (28u - 4u * at) & 15u];
    }
    print(text);
}

/* 1 if the outputs have the expected CRCs. */
static int print_outputs(nvdla_device *device, const nvdla_test *test, void (*print)(const char *text)) {
    const nvdla_program *program = test->program;
    uint32_t index;
    int equal = 1;
    for (index = 0; index < program->output_count; index++) {
        const uint8_t *bytes = nvdla_tensor_bytes(device, &program->outputs[index]);
        uint32_t crc = bytes == 0 ? 0u : nvdla_crc32(bytes, program->outputs[index].size);
        print(" crc ");
        print_crc(print, crc);
        print(" expected ");
        print_crc(print, test->crcs[index]);
        equal = equal && bytes != 0 && crc == test->crcs[index];
    }
    return equal;
}

int nvdla_run_tests(nvdla_device *device, void (*print)(const char *text)) {
    uint32_t index;
    int failed = 0;
    print("nvdla-test begin ");
    print_number(print, nvdla_tests_count);
    print(" | ");
    print(nvdla_tests_config);
    print("\n");
    for (index = 0; index < nvdla_tests_count; index++) {
        const nvdla_test *test = &nvdla_tests[index];
        int result = test->run(device);
        print("nvdla-test ");
        print_number(print, index + 1u);
        print(" result ");
        print_number(print, (uint32_t)result);
        failed += !print_outputs(device, test, print) || result != NVDLA_OK;
        print(" | ");
        print(test->engine);
        print(" | ");
        print(test->mode);
        print(" | ");
        print(test->precision);
        print("\n");
    }
    print("nvdla-test end\n");
    return failed;
}
