#include "nvdla_serial.h"

#define MESSAGE_BYTES 160u

static void put_word(uint32_t value) {
    uint32_t shift;
    for (shift = 0; shift < 32u; shift += 8u) {
        nvdla_serial_put((uint8_t)(value >> shift & 0xffu));
    }
}

static uint32_t get_word(void) {
    uint32_t value = 0;
    uint32_t shift;
    for (shift = 0; shift < 32u; shift += 8u) {
        value |= (uint32_t)nvdla_serial_get() << shift;
    }
    return value;
}

static void request(char command, uint32_t address, uint32_t value) {
    put_word((uint32_t)command);
    put_word(address);
    put_word(value);
}

static uint32_t reply(void) {
    char message[MESSAGE_BYTES];
    uint32_t status = get_word();
    uint32_t value = get_word();
    uint32_t at;
    if (status == 0u) {
        return value;
    }
    for (at = 0; at < value; at++) {
        char letter = (char)nvdla_serial_get();
        if (at < MESSAGE_BYTES - 1u) {
            message[at] = letter;
        }
    }
    message[value < MESSAGE_BYTES ? value : MESSAGE_BYTES - 1u] = '\0';
    nvdla_serial_failed(message);
    return 0;
}

void nvdla_serial_write(uint32_t address, uint32_t value) {
    request('W', address, value);
}

uint32_t nvdla_serial_read(uint32_t address) {
    request('R', address, 0);
    return reply();
}

uint32_t nvdla_serial_wait(void) {
    request('I', 0, 0);
    return reply();
}
