/* The part of a generated model library that is the same for every network. */
#include <nvdla_crt.h>

enum { DL_TENSOR_HANDLE = 7, ND_ARRAY_HANDLE = 13 };

/* Data of a tensor argument, NULL with an error code where it is no tensor of `size` bytes. */
static int32_t tensor_data(const TVMValue* arg, int type_code, uint64_t size, uint8_t** data) {
  const DLTensor* tensor;
  uint64_t bytes;
  int32_t i;
  if (type_code != DL_TENSOR_HANDLE && type_code != ND_ARRAY_HANDLE) {
    return NVDLA_WRONG_ARGUMENT_TYPE;
  }
  tensor = (const DLTensor*)arg->v_handle;
  if (tensor == NULL || (tensor->data == NULL && size != 0)) {
    return NVDLA_INVALID_ARGUMENT;
  }
  bytes = ((uint64_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
  for (i = 0; i < tensor->ndim; ++i) {
    bytes *= (uint64_t)tensor->shape[i];
  }
  if (bytes != size) {
    return NVDLA_INVALID_ARGUMENT;
  }
  *data = size == 0 ? NULL : (uint8_t*)tensor->data + tensor->byte_offset;
  return NVDLA_CRT_OK;
}

static int32_t write_contents(nvdla_instance_t* instance, int32_t only_reload) {
  const nvdla_network_t* network = instance->network;
  const nvdla_platform_t* platform = instance->platform;
  uint32_t i;
  for (i = 0; i < network->num_contents; ++i) {
    const nvdla_content_t* content = &network->contents[i];
    int32_t status;
    if (only_reload && !content->reload) {
      continue;
    }
    status = platform->write(platform->context, content->memory, content->offset,
                             instance->parameters[content->parameter], network->parameters[content->parameter].size);
    if (status != NVDLA_CRT_OK) {
      return status;
    }
  }
  return NVDLA_CRT_OK;
}

static int32_t release_first(nvdla_instance_t* instance, uint32_t count) {
  const nvdla_platform_t* platform = instance->platform;
  int32_t result = NVDLA_CRT_OK;
  while (count > 0) {
    int32_t status;
    --count;
    status = platform->release(platform->context, instance->network->memories[count].id);
    if (result == NVDLA_CRT_OK) {
      result = status;
    }
  }
  return result;
}

static int32_t allocate_all(nvdla_instance_t* instance) {
  const nvdla_platform_t* platform = instance->platform;
  uint32_t i;
  for (i = 0; i < instance->network->num_memories; ++i) {
    int32_t status = platform->allocate(platform->context, &instance->network->memories[i]);
    if (status != NVDLA_CRT_OK) {
      (void)release_first(instance, i);
      return status;
    }
  }
  return NVDLA_CRT_OK;
}

int32_t nvdla_crt_load(nvdla_instance_t* instance, const TVMValue* args, const int* type_codes, int num_args) {
  const nvdla_network_t* network = instance->network;
  int32_t status;
  uint32_t i;
  if (instance->platform == NULL) {
    return NVDLA_NO_PLATFORM;
  }
  if (num_args < 0 || (uint32_t)num_args != network->num_parameters) {
    return NVDLA_WRONG_ARGUMENT_COUNT;
  }
  for (i = 0; i < network->num_parameters; ++i) {
    uint8_t* data = NULL;
    status = tensor_data(&args[i], type_codes[i], network->parameters[i].size, &data);
    if (status != NVDLA_CRT_OK) {
      return status;
    }
    instance->parameters[i] = data;
  }
  if (instance->loaded) {
    return NVDLA_CRT_OK;
  }
  status = allocate_all(instance);
  if (status != NVDLA_CRT_OK) {
    return status;
  }
  status = write_contents(instance, 0);
  if (status != NVDLA_CRT_OK) {
    (void)release_first(instance, network->num_memories);
    return status;
  }
  instance->loaded = 1;
  return NVDLA_CRT_OK;
}

int32_t nvdla_crt_submit(nvdla_instance_t* instance, uint32_t index, int num_args) {
  const nvdla_platform_t* platform = instance->platform;
  const nvdla_submit_t* submit;
  int32_t status;
  uint32_t i;
  if (platform == NULL || !instance->loaded) {
    return NVDLA_NO_PLATFORM;
  }
  if (num_args != 0) {
    return NVDLA_WRONG_ARGUMENT_COUNT;
  }
  if (index >= instance->network->num_submits) {
    return NVDLA_INVALID_ARGUMENT;
  }
  submit = &instance->network->submits[index];
  status = write_contents(instance, 1);
  for (i = 0; status == NVDLA_CRT_OK && i < submit->num_tasks; ++i) {
    status = platform->submit(platform->context, &submit->tasks[i]);
  }
  return status;
}

int32_t nvdla_crt_run(nvdla_instance_t* instance, const TVMValue* args, const int* type_codes, int num_args) {
  const nvdla_network_t* network = instance->network;
  const uint32_t first_parameter = network->num_inputs;
  const uint32_t first_output = network->num_inputs + network->num_parameters;
  const nvdla_platform_t* platform = instance->platform;
  int32_t status;
  uint32_t i;
  if (num_args < 0 || (uint32_t)num_args != first_output + network->num_outputs) {
    return NVDLA_WRONG_ARGUMENT_COUNT;
  }
  status = nvdla_crt_load(instance, args + first_parameter, type_codes + first_parameter,
                          (int)network->num_parameters);
  for (i = 0; status == NVDLA_CRT_OK && i < network->num_inputs; ++i) {
    const nvdla_binding_t* input = &network->inputs[i];
    uint8_t* data = NULL;
    status = tensor_data(&args[i], type_codes[i], input->size, &data);
    if (status == NVDLA_CRT_OK) {
      status = platform->write(platform->context, input->memory, 0, data, input->size);
    }
  }
  for (i = 0; status == NVDLA_CRT_OK && i < network->num_submits; ++i) {
    status = nvdla_crt_submit(instance, i, 0);
  }
  for (i = 0; status == NVDLA_CRT_OK && i < network->num_outputs; ++i) {
    const nvdla_binding_t* output = &network->outputs[i];
    uint8_t* data = NULL;
    status = tensor_data(&args[first_output + i], type_codes[first_output + i], output->size, &data);
    if (status == NVDLA_CRT_OK) {
      status = platform->read(platform->context, output->memory, 0, data, output->size);
    }
  }
  return status;
}

int32_t nvdla_crt_unload(nvdla_instance_t* instance, int num_args) {
  if (num_args != 0) {
    return NVDLA_WRONG_ARGUMENT_COUNT;
  }
  if (!instance->loaded) {
    return NVDLA_CRT_OK;
  }
  instance->loaded = 0;
  return release_first(instance, instance->network->num_memories);
}
