#define _POSIX_C_SOURCE 200809L
#include "nvdla_remote.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void fail(const char *what) {
    fprintf(stderr, "nvdla_remote: %s\n", what);
    exit(3);
}

static void put_word(unsigned char *bytes, uint32_t value) {
    bytes[0] = (unsigned char)(value & 0xffu);
    bytes[1] = (unsigned char)(value >> 8 & 0xffu);
    bytes[2] = (unsigned char)(value >> 16 & 0xffu);
    bytes[3] = (unsigned char)(value >> 24);
}

static uint32_t get_word(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static void flush_requests(nvdla_remote *remote) {
    uint32_t sent = 0;
    while (sent < remote->filled) {
        ssize_t count = send(remote->socket, remote->buffer + sent, remote->filled - sent, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            fail("the server has gone");
        }
        sent += (uint32_t)count;
    }
    remote->filled = 0;
}

static void request(nvdla_remote *remote, char command, uint32_t address, uint32_t value) {
    if (remote->filled == sizeof remote->buffer) {
        flush_requests(remote);
    }
    put_word(remote->buffer + remote->filled, (uint32_t)(unsigned char)command);
    put_word(remote->buffer + remote->filled + 4, address);
    put_word(remote->buffer + remote->filled + 8, value);
    remote->filled += 12;
}

static void receive(nvdla_remote *remote, unsigned char *bytes, size_t size) {
    while (size != 0) {
        ssize_t count = recv(remote->socket, bytes, size, 0);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            fail("the server has gone");
        }
        bytes += count;
        size -= (size_t)count;
    }
}

static uint32_t reply(nvdla_remote *remote) {
    unsigned char bytes[8];
    char text[4097];
    flush_requests(remote);
    receive(remote, bytes, sizeof bytes);
    if (get_word(bytes) != 0) {
        size_t size = get_word(bytes + 4);
        size = size < sizeof text ? size : sizeof text - 1;
        receive(remote, (unsigned char *)text, size);
        text[size] = 0;
        fail(text);
    }
    return get_word(bytes + 4);
}

int nvdla_remote_open(nvdla_remote *remote, const char *path) {
    struct sockaddr_un address;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    remote->filled = 0;
    remote->socket = socket(AF_UNIX, SOCK_STREAM, 0);
    if (remote->socket < 0) {
        return -1;
    }
    return connect(remote->socket, (const struct sockaddr *)&address, sizeof address);
}

void nvdla_remote_close(nvdla_remote *remote) {
    close(remote->socket);
}

uint8_t *nvdla_remote_map(const char *path, uint32_t size) {
    int file = open(path, O_RDWR);
    void *memory;
    if (file < 0) {
        return 0;
    }
    memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? 0 : memory;
}

void nvdla_remote_write(nvdla_remote *remote, uint32_t address, uint32_t value) {
    request(remote, 'W', address, value);
}

uint32_t nvdla_remote_read(nvdla_remote *remote, uint32_t address) {
    request(remote, 'R', address, 0);
    return reply(remote);
}

uint32_t nvdla_remote_wait(nvdla_remote *remote) {
    request(remote, 'I', 0, 0);
    return reply(remote);
}
