// In place of the compiler's own: what the runtime's headers of types need of it.
#pragma once
#define __no_return__ __attribute__((noreturn))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __thread__ __thread
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDA_CB
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __builtin_align__(n) __align__(n)
#define __cudart_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
