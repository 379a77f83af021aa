// The driver, which torch opens by its name, and the few calls of cuBLAS that answer something. What
// torch asks the driver is there, what it would make by it is not supported.
#include <cstddef>

extern "C" {

enum { SUCCESS = 0, NOT_SUPPORTED = 801 };

int cuInit(unsigned) { return SUCCESS; }
int cuGetErrorString(int, const char **text) {
    *text = "operation not supported";
    return SUCCESS;
}
int cuGetErrorName(int, const char **text) {
    *text = "CUDA_ERROR_NOT_SUPPORTED";
    return SUCCESS;
}
int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return SUCCESS;
}
int cuDeviceGetCount(int *count) {
    *count = 1;
    return SUCCESS;
}
int cuDeviceGetAttribute(int *value, int, int) {
    *value = 0;
    return SUCCESS;
}
int cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active) {
    *flags = 0, *active = 1;
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int) {
    *context = (void *)1;
    return SUCCESS;
}
int cuCtxGetCurrent(void **context) {
    *context = (void *)1;
    return SUCCESS;
}
int cuCtxSetCurrent(void *) { return SUCCESS; }

#define NOT_THERE(name) \
    int name(...) { return NOT_SUPPORTED; }
NOT_THERE(cuCtxFromGreenCtx)
NOT_THERE(cuCtxPopCurrent)
NOT_THERE(cuCtxPushCurrent)
NOT_THERE(cuDevResourceGenerateDesc)
NOT_THERE(cuDevSmResourceSplitByCount)
NOT_THERE(cuDeviceGetDevResource)
NOT_THERE(cuDeviceGetUuid)
NOT_THERE(cuDeviceGetUuid_v2)
NOT_THERE(cuGreenCtxCreate)
NOT_THERE(cuGreenCtxDestroy)
NOT_THERE(cuGreenCtxStreamCreate)
NOT_THERE(cuKernelGetAttribute)
NOT_THERE(cuLogsRegisterCallback)
NOT_THERE(cuLogsUnregisterCallback)
NOT_THERE(cuMemAddressFree)
NOT_THERE(cuMemAddressReserve)
NOT_THERE(cuMemCreate)
NOT_THERE(cuMemExportToShareableHandle)
NOT_THERE(cuMemGetAddressRange)
NOT_THERE(cuMemGetAddressRange_v2)
NOT_THERE(cuMemGetAllocationGranularity)
NOT_THERE(cuMemGetAllocationPropertiesFromHandle)
NOT_THERE(cuMemImportFromShareableHandle)
NOT_THERE(cuMemMap)
NOT_THERE(cuMemRelease)
NOT_THERE(cuMemRetainAllocationHandle)
NOT_THERE(cuMemSetAccess)
NOT_THERE(cuMemUnmap)
NOT_THERE(cuMemsetD32Async)
NOT_THERE(cuMulticastAddDevice)
NOT_THERE(cuMulticastBindMem)
NOT_THERE(cuMulticastCreate)
NOT_THERE(cuMulticastUnbind)
NOT_THERE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOT_THERE(cuPointerGetAttribute)
NOT_THERE(cuPointerGetAttributes)
NOT_THERE(cuStreamGetCtx)
NOT_THERE(cuStreamWriteValue32)
NOT_THERE(cuTensorMapEncodeTiled)
NOT_THERE(cuLaunchKernel)
NOT_THERE(cuLaunchCooperativeKernel)
NOT_THERE(cuModuleLoadData)
NOT_THERE(cuModuleLoadDataEx)
NOT_THERE(cuModuleUnload)
NOT_THERE(cuModuleGetFunction)
NOT_THERE(cuModuleGetGlobal)
NOT_THERE(cuModuleGetGlobal_v2)
NOT_THERE(cuOccupancyMaxActiveBlocks)
NOT_THERE(cuFuncSetAttribute)
NOT_THERE(cuFuncGetAttribute)
NOT_THERE(cuFuncSetCacheConfig)
NOT_THERE(cuLinkCreate)
NOT_THERE(cuLinkCreate_v2)
NOT_THERE(cuLinkAddData)
NOT_THERE(cuLinkAddData_v2)
NOT_THERE(cuLinkComplete)
NOT_THERE(cuLinkDestroy)
NOT_THERE(cuCtxSynchronize)

int cublasCreate_v2(void **handle) {
    *handle = (void *)1;
    return SUCCESS;
}
int cublasGetMathMode(void *, int *mode) {
    *mode = 0;
    return SUCCESS;
}
int cublasGetPointerMode_v2(void *, int *mode) {
    *mode = 0;
    return SUCCESS;
}
size_t cublasLtGetVersion() { return 120000; }
int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, void *,
                                   int *found) {
    *found = 1;
    return SUCCESS;
}

}  // extern "C"
