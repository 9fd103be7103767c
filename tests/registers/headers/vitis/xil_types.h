#ifndef XIL_TYPES_H
#define XIL_TYPES_H
#include <stdint.h>
typedef uint32_t u32;
typedef intptr_t INTPTR;
typedef uintptr_t UINTPTR;
#endif
