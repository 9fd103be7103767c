/* Runs a compiled NVDLA network behind the function registry of TVM's C runtime.
 *
 * The tables of a network (memories, what is loaded into them, tasks, address lists) are generated; this header says
 * what they mean, and what the platform has to provide. With NVDLA_USE_TVM_HEADERS defined the runtime's own headers
 * are used (0.9 and later); without it the declarations below, which have the same layout.
 */
#ifndef NVDLA_CRT_H_
#define NVDLA_CRT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef NVDLA_USE_TVM_HEADERS
#include <tvm/runtime/crt/module.h>
#else
typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;

typedef union {
  int64_t v_int64;
  double v_float64;
  void* v_handle;
  const char* v_str;
  DLDataType v_type;
  DLDevice v_device;
} TVMValue;

typedef int (*TVMBackendPackedCFunc)(TVMValue* args, int* type_codes, int num_args, TVMValue* out_ret_value,
                                     int* out_ret_tcode, void* resource_handle);

typedef struct TVMFuncRegistry {
  const char* names;
  const TVMBackendPackedCFunc* funcs;
} TVMFuncRegistry;

typedef struct TVMModule {
  const TVMFuncRegistry* registry;
} TVMModule;

const TVMModule* TVMSystemLibEntryPoint(void);
#endif

/* What the functions return: 0, or an error code of the C runtime. A platform's own codes are passed on. */
enum {
  NVDLA_CRT_OK = 0,
  NVDLA_NO_PLATFORM = 0x500,
  NVDLA_WRONG_ARGUMENT_COUNT = 0x800,
  NVDLA_WRONG_ARGUMENT_TYPE = 0x801,
  NVDLA_INVALID_ARGUMENT = 0x803
};

/* A blob of the parameter file, in the file's order. */
typedef struct {
  const char* name;
  uint64_t size;
} nvdla_parameter_t;

/* `parameter` is copied to byte `offset` of a memory; `reload` before every submit (dependency counts run down). */
typedef struct {
  uint32_t parameter;
  uint32_t memory;
  uint64_t offset;
  uint32_t reload;
} nvdla_content_t;

/* `domain` 0 is DRAM, 1 the on-chip memory (CVSRAM). */
typedef struct {
  uint32_t id;
  uint32_t domain;
  uint64_t size;
  uint64_t alignment;
} nvdla_memory_t;

/* Where the register program of the network (nvdla program --format c) has a memory: a byte of memory `domain`. */
typedef struct {
  uint32_t memory;
  uint32_t domain;
  uint64_t offset;
} nvdla_place_t;

/* One entry of an address list: its place in the list is the address index that descriptors use. */
typedef struct {
  uint32_t memory;
  uint64_t offset;
  uint64_t size;
} nvdla_address_t;

/* Work for one processor: `interface` 1 is the accelerator, 2 the CPU (softmax, power). */
typedef struct {
  uint32_t id;
  uint32_t interface;
  int32_t instance;
  const nvdla_address_t* addresses;
  uint32_t num_addresses;
} nvdla_task_t;

/* Tasks that are handed over together. */
typedef struct {
  uint32_t id;
  const nvdla_task_t* tasks;
  uint32_t num_tasks;
} nvdla_submit_t;

/* A bound tensor: the whole memory, as surfaces (the layout is in executor-config/nvdla). */
typedef struct {
  const char* name;
  uint32_t memory;
  uint64_t size;
} nvdla_binding_t;

typedef struct {
  const char* name;
  const nvdla_parameter_t* parameters;
  uint32_t num_parameters;
  const nvdla_content_t* contents;
  uint32_t num_contents;
  const nvdla_memory_t* memories;
  uint32_t num_memories;
  const nvdla_submit_t* submits;
  uint32_t num_submits;
  const nvdla_binding_t* inputs;
  uint32_t num_inputs;
  const nvdla_binding_t* outputs;
  uint32_t num_outputs;
} nvdla_network_t;

/* What the platform provides: memory that the accelerator reaches, and the way to start a task and wait for it. Each
 * function returns 0, or an error code. `memory` is the id of the memory. A new memory holds zeros. */
typedef struct {
  void* context;
  int32_t (*allocate)(void* context, const nvdla_memory_t* memory);
  int32_t (*release)(void* context, uint32_t memory);
  int32_t (*write)(void* context, uint32_t memory, uint64_t offset, const void* data, uint64_t size);
  int32_t (*read)(void* context, uint32_t memory, uint64_t offset, void* data, uint64_t size);
  int32_t (*submit)(void* context, const nvdla_task_t* task);
} nvdla_platform_t;

/* A network in use. `parameters[i]` points at the data of parameter i from `load` on, which must stay where it is. */
typedef struct {
  const nvdla_network_t* network;
  const nvdla_platform_t* platform;
  const void** parameters;
  int32_t loaded;
} nvdla_instance_t;

/* Arguments: the parameters. Allocates the memories and fills them. */
int32_t nvdla_crt_load(nvdla_instance_t* instance, const TVMValue* args, const int* type_codes, int num_args);
/* Arguments: inputs, parameters, outputs. Loads if that was not done, then runs the whole network. */
int32_t nvdla_crt_run(nvdla_instance_t* instance, const TVMValue* args, const int* type_codes, int num_args);
/* No arguments: submit number `index`, on memories that are loaded. */
int32_t nvdla_crt_submit(nvdla_instance_t* instance, uint32_t index, int num_args);
/* No arguments: gives the memories back. */
int32_t nvdla_crt_unload(nvdla_instance_t* instance, int num_args);

#endif /* NVDLA_CRT_H_ */
