/* What TVM's C runtime asks of a platform, for systems with a C library. Replace what your board has better: a timer, a
 * console, a source of random numbers. Without TVM's headers the file also has TVMInitializeRuntime, which a program can
 * call as it would with TVM's runtime. */
#include <nvdla_crt.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef NVDLA_USE_TVM_HEADERS
#include <tvm/runtime/crt/platform.h>
#else
typedef int tvm_crt_error_t;
void TVMPlatformAbort(tvm_crt_error_t code);
size_t TVMPlatformFormatMessage(char* out_buf, size_t out_buf_size_bytes, const char* fmt, va_list args);
tvm_crt_error_t TVMPlatformMemoryAllocate(size_t num_bytes, DLDevice dev, void** out_ptr);
tvm_crt_error_t TVMPlatformMemoryFree(void* ptr, DLDevice dev);
tvm_crt_error_t TVMPlatformTimerStart(void);
tvm_crt_error_t TVMPlatformTimerStop(double* elapsed_time_seconds);
tvm_crt_error_t TVMPlatformGenerateRandom(uint8_t* buffer, size_t num_bytes);
tvm_crt_error_t TVMPlatformInitialize(void);
tvm_crt_error_t TVMInitializeRuntime(void);
#endif

enum { OK = 0, NO_MEMORY = 0x503, BAD_TIMER = 0x504, NO_LIBRARY = 0x600 };

static clock_t started;
static int32_t is_running;

void TVMPlatformAbort(tvm_crt_error_t code) {
  fprintf(stderr, "TVM runtime: error 0x%x\n", (unsigned)code);
  exit(1);
}

size_t TVMPlatformFormatMessage(char* out_buf, size_t out_buf_size_bytes, const char* fmt, va_list args) {
  const int written = vsnprintf(out_buf, out_buf_size_bytes, fmt, args);
  return written < 0 ? 0 : (size_t)written;
}

tvm_crt_error_t TVMPlatformMemoryAllocate(size_t num_bytes, DLDevice dev, void** out_ptr) {
  (void)dev;
  *out_ptr = malloc(num_bytes);
  return *out_ptr == NULL ? NO_MEMORY : OK;
}

tvm_crt_error_t TVMPlatformMemoryFree(void* ptr, DLDevice dev) {
  (void)dev;
  free(ptr);
  return OK;
}

tvm_crt_error_t TVMPlatformTimerStart(void) {
  if (is_running) {
    return BAD_TIMER;
  }
  is_running = 1;
  started = clock();
  return OK;
}

tvm_crt_error_t TVMPlatformTimerStop(double* elapsed_time_seconds) {
  if (!is_running) {
    return BAD_TIMER;
  }
  is_running = 0;
  *elapsed_time_seconds = (double)(clock() - started) / CLOCKS_PER_SEC;
  return OK;
}

tvm_crt_error_t TVMPlatformGenerateRandom(uint8_t* buffer, size_t num_bytes) {
  size_t i;
  for (i = 0; i < num_bytes; ++i) {
    buffer[i] = (uint8_t)(rand() >> 7);
  }
  return OK;
}

tvm_crt_error_t TVMPlatformInitialize(void) {
  srand((unsigned)time(NULL));
  return OK;
}

#ifndef NVDLA_USE_TVM_HEADERS
tvm_crt_error_t TVMInitializeRuntime(void) {
  const TVMModule* library = TVMSystemLibEntryPoint();
  return library == NULL || library->registry == NULL ? NO_LIBRARY : TVMPlatformInitialize();
}
#endif
