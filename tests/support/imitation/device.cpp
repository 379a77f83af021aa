// The part of CUDA's runtime that torch and its process groups of NCCL use, without a device: memory
// is the host's, streams are threads that do one task after the other, kernels do nothing (but for
// those that sleep or count). Order, blocking, events, captures and lost contexts are as documented.
// What is not here is made when it is built: it answers that it is not supported.
#include "device.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <shared_mutex>
#include <string>
#include <unistd.h>
#include <unordered_map>

namespace imitated {
namespace {

constexpr size_t LAUNCHES = 1024;  // so many wait at most; whoever launches more is blocked
std::atomic<unsigned long long> numbers{1};
std::atomic<int> lost{0};
thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;
std::atomic<int> strict_captures{0};  // in the mode that forbids others what may disturb it
std::mutex captures_lock;
std::vector<std::weak_ptr<Graph>> captures;
std::shared_mutex driver;  // cudaFree waits with it held, and everybody waits for that

std::mutex memory_lock;
struct Block {
    size_t size;
    int type;  // cudaMemoryType
    int device;
};
std::map<char *, Block> memory;
std::atomic<size_t> used{0};

const Block *block_of(const void *pointer) {
    auto found = memory.upper_bound((char *)pointer);
    if (found == memory.begin()) return nullptr;
    --found;
    return (char *)pointer < found->first + found->second.size ? &found->second : nullptr;
}

int type_of(const void *pointer) {
    std::lock_guard<std::mutex> held(memory_lock);
    const Block *block = block_of(pointer);
    return block ? block->type : (int)cudaMemoryTypeUnregistered;
}

cudaError_t given(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

// What may not happen while a capture forbids it, and breaks that capture.
bool disturbs() {
    if (mode_of_thread == cudaStreamCaptureModeRelaxed || !strict_captures) return false;
    std::lock_guard<std::mutex> held(captures_lock);
    bool any = false;
    for (auto &each : captures)
        if (auto graph = each.lock())
            if (graph->mode == cudaStreamCaptureModeGlobal && mode_of_thread == cudaStreamCaptureModeGlobal)
                graph->broken = any = true;
    return any;
}

struct Event {
    std::mutex lock;
    std::shared_ptr<Mark> mark;
    std::weak_ptr<Graph> within;  // recorded in a capture
};

}  // namespace

Stream::Stream(int device, int priority)
    : device(device), priority(priority), id(numbers++) {}

void Stream::run() {
    for (;;) {
        Task task;
        {
            std::unique_lock<std::mutex> held(lock_);
            come_.wait(held, [this] { return !tasks_.empty(); });
            task = std::move(tasks_.front());
            tasks_.pop_front();
        }
        if (!lost) task();
        std::lock_guard<std::mutex> held(lock_);
        over_count_++;
        over_.notify_all();
    }
}

void Stream::put_now(Task task) {
    std::unique_lock<std::mutex> held(lock_);
    if (!put_) std::thread([this] { run(); }).detach();
    over_.wait(held, [this] { return tasks_.size() < LAUNCHES; });
    tasks_.push_back(std::move(task));
    put_++;
    come_.notify_one();
}

void Stream::put(Task task) {
    if (capture)
        capture->tasks.push_back(std::move(task));
    else
        put_now(std::move(task));
}

void Stream::put(const Graph &graph) {
    for (const Task &task : graph.tasks) put_now(task);
}

std::shared_ptr<Mark> Stream::mark() {
    auto mark = std::make_shared<Mark>();
    put_now([mark] {
        mark->at_ms = now_ms();
        mark->passed = true;
    });
    return mark;
}

bool Stream::idle() {
    std::lock_guard<std::mutex> held(lock_);
    return over_count_ == put_;
}

void Stream::wait() {
    std::unique_lock<std::mutex> held(lock_);
    const auto until = put_;
    over_.wait(held, [&] { return over_count_ >= until; });
}

namespace {

// Never destroyed: their threads outlive exit handlers.
std::mutex &streams_lock = *new std::mutex;
std::vector<Stream *> &streams = *new std::vector<Stream *>;

Stream *made(int device, int priority) {
    auto *one = new Stream(device, priority);
    std::lock_guard<std::mutex> held(streams_lock);
    streams.push_back(one);
    return one;
}

std::vector<Stream *> all() {
    std::lock_guard<std::mutex> held(streams_lock);
    return streams;
}

Event &event_of(cudaEvent_t handle) { return *(Event *)handle; }

void pause_while(const std::function<bool()> &waits) {
    for (int n = 0; waits(); n++) usleep(n < 20 ? 20 : 200);
}

bool is_default(cudaStream_t handle) { return (uintptr_t)handle <= 2; }

}  // namespace

Stream &stream_of(cudaStream_t handle) {
    static std::mutex &lock = *new std::mutex;
    static std::map<int, Stream *> &defaults = *new std::map<int, Stream *>;
    if (!is_default(handle)) return *(Stream *)handle;
    std::lock_guard<std::mutex> held(lock);
    auto &one = defaults[device_of_thread];
    if (!one) one = made(device_of_thread, 0);
    return *one;
}

int current_device() { return device_of_thread; }

int devices() {
    const char *set = getenv("IMITATED_DEVICES");
    return set ? atoi(set) : 1;
}

double now_ms() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

void fail(cudaError_t error) {
    int none = 0;
    lost.compare_exchange_strong(none, error);
}

cudaError_t failed() { return (cudaError_t)lost.load(); }

}  // namespace imitated

using namespace imitated;

#define LIVE                                    \
    do {                                        \
        if (failed()) return given(failed());   \
    } while (0)
#define FORBIDDEN \
    if (disturbs()) return given(cudaErrorStreamCaptureUnsupported)

extern "C" {

// ---- kernels: by the name that the compiler registered ---------------------------------------

static std::mutex &kernels_lock = *new std::mutex;
static std::unordered_map<const void *, std::string> &kernels =
    *new std::unordered_map<const void *, std::string>;

void **__cudaRegisterFatBinary(void *) {
    static void *nothing;
    return &nothing;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
void __cudaRegisterFunction(void **, const char *host, char *, const char *name, int, void *, void *,
                            void *, void *, int *) {
    std::lock_guard<std::mutex> held(kernels_lock);
    kernels[host] = name;
}

struct Configuration {
    dim3 grid, block;
    size_t shared;
    void *stream;
};
static thread_local std::vector<Configuration> configurations;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    configurations.push_back({grid, block, shared, stream});
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    const auto last = configurations.back();
    configurations.pop_back();
    *grid = last.grid, *block = last.block, *shared = last.shared;
    *(void **)stream = last.stream;
    return cudaSuccess;
}

static const char *const no_kernel = "";
static const char *name_of(const void *function) {
    std::lock_guard<std::mutex> held(kernels_lock);
    const auto found = kernels.find(function);
    return found == kernels.end() ? no_kernel : found->second.c_str();
}

// IMITATED_FAILS="part of a kernel's name:error,...": such a kernel loses the context.
static cudaError_t fails(const char *name) {
    static const char *set = getenv("IMITATED_FAILS");
    for (const char *at = set; at && *at;) {
        const char *colon = strchr(at, ':');
        if (!colon) break;
        if (strstr(name, std::string(at, colon - at).c_str())) return (cudaError_t)atoi(colon + 1);
        at = strchr(colon, ',');
        if (at) at++;
    }
    return cudaSuccess;
}

// Of integers, by which object collectives find how much to send: of torch's ReduceOp the number of
// inputs, and the first two pointers, from and to.
static Task reduced(const char *reduce, bool sums) {
    const int count = *(const int *)(reduce + 20);
    long *pointers[2] = {};
    int found = 0;
    std::lock_guard<std::mutex> held(memory_lock);
    for (const char *at = reduce + 24; found < 2 && at < reduce + 1024; at += 8)
        if (block_of(*(void **)at)) pointers[found++] = *(long **)at;
    if (found < 2) return [] {};
    return [=, from = pointers[0], to = pointers[1]] {
        *to = from[0];
        for (int n = 1; n < count; n++) *to = sums ? *to + from[n] : std::max(*to, from[n]);
    };
}

// Sums of integers, by the same: of torch's vectorized_elementwise_kernel the number, the functor
// with one factor or two, and the pointers, to and from.
static Task sum(void **arguments, bool of_two) {
    const int count = *(int *)arguments[0];
    const long *functor = (long *)arguments[1];
    long **pointers = (long **)arguments[2];
    if (of_two)
        return [count, by = functor[0], to = pointers[0], a = pointers[1], b = pointers[2]] {
            for (int n = 0; n < count; n++) to[n] = a[n] + by * b[n];
        };
    return [count, more = functor[0] * functor[1], to = pointers[0], from = pointers[1]] {
        for (int n = 0; n < count; n++) to[n] = from[n] + more;
    };
}

static cudaError_t launched(const void *function, void **arguments, cudaStream_t stream) {
    LIVE;
    const char *name = name_of(function);
    static const bool tells = getenv("IMITATED_TELLS");  // for whoever misses a kernel
    if (tells) fprintf(stderr, "a kernel: %s\n", name);
    if (const cudaError_t error = fails(name)) {
        stream_of(stream).put([error] { fail(error); });
    } else if (strstr(name, "spin_kernel")) {
        const long long cycles = *(long long *)arguments[0];
        stream_of(stream).put([cycles] { usleep(cycles / 1000); });  // at one GHz
    } else if (strstr(name, "reduce_kernel") && strstr(name, "MaxNanFunctorIl")) {
        stream_of(stream).put(reduced((const char *)arguments[0], false));
    } else if (strstr(name, "reduce_kernel") && strstr(name, "sum_functorIl")) {
        stream_of(stream).put(reduced((const char *)arguments[0], true));
    } else if (strstr(name, "vectorized_elementwise") && strstr(name, "CUDAFunctorOnSelf_addIl")) {
        stream_of(stream).put(sum(arguments, false));
    } else if (strstr(name, "vectorized_elementwise") && strstr(name, "CUDAFunctor_addIl")) {
        stream_of(stream).put(sum(arguments, true));
    } else {
        stream_of(stream).put([] {});
    }
    return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *function, dim3, dim3, void **arguments, size_t,
                             cudaStream_t stream) {
    return launched(function, arguments, stream);
}
cudaError_t __cudaLaunchKernel(void *kernel, dim3, dim3, void **arguments, size_t,
                               cudaStream_t stream) {
    return launched(kernel, arguments, stream);
}
cudaError_t __cudaGetKernel(void **kernel, const void *function) {
    *kernel = (void *)function;
    return cudaSuccess;
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3, dim3, void **arguments, size_t,
                                        cudaStream_t stream) {
    return launched(function, arguments, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
                                void **arguments) {
    return launched(function, arguments, config->stream);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    LIVE;
    stream_of(stream).put([=] { function(data); });
    return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream,
                                  void (*function)(cudaStream_t, cudaError_t, void *), void *data,
                                  unsigned) {
    LIVE;
    stream_of(stream).put([=] { function(stream, cudaSuccess, data); });
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->binaryVersion = attributes->ptxVersion = 90;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, int, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t) {
    *blocks = 2;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *, int,
                                                                   size_t, unsigned) {
    *blocks = 2;
    return cudaSuccess;
}

// ---- devices ---------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int *count) {
    *count = devices();
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = device_of_thread;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= devices()) return given(cudaErrorInvalidDevice);
    device_of_thread = device;
    return failed() ? given(failed()) : cudaSuccess;
}
static cudaError_t properties(cudaDeviceProp *of, int device) {
    memset((void *)of, 0, sizeof *of);
    snprintf(of->name, sizeof of->name, "an imitation without a device");
    of->totalGlobalMem = 16ull << 30;
    of->sharedMemPerBlock = 48 << 10;
    of->sharedMemPerBlockOptin = of->sharedMemPerMultiprocessor = 227 << 10;
    of->regsPerBlock = of->regsPerMultiprocessor = 65536;
    of->warpSize = 32;
    of->maxThreadsPerBlock = 1024;
    of->maxThreadsPerMultiProcessor = 2048;
    of->maxBlocksPerMultiProcessor = 32;
    of->maxThreadsDim[0] = of->maxThreadsDim[1] = 1024, of->maxThreadsDim[2] = 64;
    of->maxGridSize[0] = 2147483647, of->maxGridSize[1] = of->maxGridSize[2] = 65535;
    of->major = 9, of->minor = 0;
    of->multiProcessorCount = 132;
    of->l2CacheSize = 50 << 20;
    of->textureAlignment = 512;
    of->unifiedAddressing = of->managedMemory = of->concurrentKernels = 1;
    of->pciBusID = device + 1;
    of->uuid.bytes[15] = (char)(device + 1);
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *of, int device) { return properties(of, device); }
cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp *of, int device) {
    return properties(of, device);
}
cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
        case cudaDevAttrMultiProcessorCount: *value = 132; break;
        case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
        case cudaDevAttrPciBusId: *value = device + 1; break;
        default: *value = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device) {
    snprintf(id, size, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
    *can = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    LIVE;
    FORBIDDEN;
    for (Stream *one : all()) one->wait();
    return given(failed());
}
cudaError_t cudaDeviceReset() { return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = IMITATED_CUDA;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = IMITATED_CUDA;
    return cudaSuccess;
}
cudaError_t cudaGetLastError() {
    const cudaError_t error = failed() ? failed() : last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError() { return failed() ? failed() : last_error; }
const char *cudaGetErrorString(cudaError_t error) {
    switch ((int)error) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorNotReady: return "device not ready";
        case cudaErrorNotSupported: return "operation not supported";
        case cudaErrorAssert: return "device-side assert triggered";
        case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
        case cudaErrorStreamCaptureUnsupported:
            return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated:
            return "operation failed due to a previous error during capture";
        default: return "an error of the imitation";
    }
}
const char *cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
static int found_in_driver(const char *name, void **function, int *result) {
    *function = dlsym(RTLD_DEFAULT, name);
    if (result) *result = !*function;
    return cudaSuccess;
}
int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long, int *result) {
    return found_in_driver(name, function, result);
}
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned,
                                     unsigned long long, int *result) {
    return found_in_driver(name, function, result);
}

// ---- memory ----------------------------------------------------------------------------------

static cudaError_t allocated(void **pointer, size_t size, int type) {
    *pointer = calloc(1, size ? size : 1);
    if (!*pointer) return given(cudaErrorMemoryAllocation);
    if (type == cudaMemoryTypeDevice) used += size;
    std::lock_guard<std::mutex> held(memory_lock);
    memory[(char *)*pointer] = {size, type, device_of_thread};
    return cudaSuccess;
}
static cudaError_t freed(void *pointer) {
    if (!pointer) return cudaSuccess;
    {
        std::lock_guard<std::mutex> held(memory_lock);
        const auto found = memory.find((char *)pointer);
        if (found == memory.end()) return given(cudaErrorInvalidValue);
        if (found->second.type == cudaMemoryTypeDevice) used -= found->second.size;
        memory.erase(found);
    }
    free(pointer);
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **pointer, size_t size) {
    LIVE;
    FORBIDDEN;
    return allocated(pointer, size, cudaMemoryTypeDevice);
}
cudaError_t cudaFree(void *pointer) {
    LIVE;
    FORBIDDEN;
    if (pointer) {
        std::unique_lock<std::shared_mutex> held(driver);
        for (Stream *one : all()) one->wait();
    }
    return freed(pointer);
}
cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t) {
    return allocated(pointer, size, cudaMemoryTypeDevice);
}
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    stream_of(stream).put([=] { freed(pointer); });
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned) {
    LIVE;
    return allocated(pointer, size, cudaMemoryTypeHost);
}
cudaError_t cudaMallocHost(void **pointer, size_t size) {
    LIVE;
    return allocated(pointer, size, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void *pointer) { return freed(pointer); }
cudaError_t cudaHostRegister(void *, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void *) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    LIVE;
    *total = 16ull << 30;
    *free = *total - used;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
    *attributes = {};
    std::lock_guard<std::mutex> held(memory_lock);
    const Block *block = block_of(pointer);
    attributes->type = block ? (cudaMemoryType)block->type : cudaMemoryTypeUnregistered;
    attributes->device = block ? block->device : -2;
    if (block) {
        attributes->hostPointer = attributes->devicePointer = (void *)pointer;
    }
    return cudaSuccess;
}

static cudaError_t copied(void *to, const void *from, size_t size, cudaStream_t stream, bool waits) {
    LIVE;
    Stream &on = stream_of(stream);
    if (type_of(from) == cudaMemoryTypeUnregistered && !on.capture) {  // pageable: read at once
        auto staged = std::make_shared<std::vector<char>>((char *)from, (char *)from + size);
        on.put([=] { memcpy(to, staged->data(), size); });
    } else {
        on.put([=] { memcpy(to, from, size); });
    }
    if (!on.capture && (waits || type_of(to) == cudaMemoryTypeUnregistered)) on.wait();
    return given(failed());
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind) {
    return copied(to, from, size, nullptr, true);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
    return copied(to, from, size, stream, false);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t size,
                                cudaStream_t stream) {
    return copied(to, from, size, stream, false);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
    LIVE;
    stream_of(stream).put([=] {
        for (size_t row = 0; row < height; row++)
            memcpy((char *)to + row * to_pitch, (char *)from + row * from_pitch, width);
    });
    if (type_of(to) == cudaMemoryTypeUnregistered) stream_of(stream).wait();
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) {
    LIVE;
    stream_of(stream).put([=] { memset(to, value, size); });
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t size) {
    return cudaMemsetAsync(to, value, size, nullptr);
}

// ---- streams and events ----------------------------------------------------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int priority) {
    LIVE;
    *stream = (cudaStream_t)made(device_of_thread, priority);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    *priority = stream_of(stream).priority;
    return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t, unsigned *flags) {
    *flags = 1;
    return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
    *id = stream_of(stream).id;
    return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
    *device = stream_of(stream).device;
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    LIVE;
    FORBIDDEN;
    std::shared_lock<std::shared_mutex> held(driver);
    return stream_of(stream).idle() ? given(failed()) : cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    LIVE;
    FORBIDDEN;
    stream_of(stream).wait();
    return given(failed());
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    LIVE;
    *event = (cudaEvent_t) new Event;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete (Event *)event;
    return failed() ? given(failed()) : cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    LIVE;
    Stream &on = stream_of(stream);
    Event &of = event_of(event);
    auto graph = on.capture;
    auto mark = graph ? nullptr : on.mark();
    std::lock_guard<std::mutex> held(of.lock);
    of.mark = mark;
    of.within = graph;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    LIVE;
    FORBIDDEN;
    std::shared_lock<std::shared_mutex> waits(driver);
    Event &of = event_of(event);
    std::lock_guard<std::mutex> held(of.lock);
    if (!of.within.expired()) return given(cudaErrorCapturedEvent);
    return !of.mark || of.mark->passed ? given(failed()) : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    LIVE;
    FORBIDDEN;
    std::shared_ptr<Mark> mark;
    {
        std::lock_guard<std::mutex> held(event_of(event).lock);
        mark = event_of(event).mark;
    }
    if (mark) pause_while([&] { return !mark->passed && !failed(); });
    return given(failed());
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    LIVE;
    auto first = event_of(from).mark, last = event_of(to).mark;
    if (!first || !last) return given(cudaErrorInvalidResourceHandle);
    if (!first->passed || !last->passed) return cudaErrorNotReady;
    *ms = (float)(last->at_ms - first->at_ms);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime_v2(float *ms, cudaEvent_t from, cudaEvent_t to) {
    return cudaEventElapsedTime(ms, from, to);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    LIVE;
    Event &of = event_of(event);
    std::shared_ptr<Mark> mark;
    {
        std::lock_guard<std::mutex> held(of.lock);
        mark = of.mark;
        if (auto graph = of.within.lock()) {  // this stream joins the capture
            stream_of(stream).capture = graph;
            return cudaSuccess;
        }
    }
    if (mark && !mark->passed)
        stream_of(stream).put([mark] { pause_while([&] { return !mark->passed && !failed(); }); });
    return cudaSuccess;
}

// ---- captures and graphs ---------------------------------------------------------------------

struct Held {
    std::shared_ptr<Graph> graph;
    std::vector<std::pair<cudaHostFn_t, void *>> objects;
};

static cudaError_t begun(cudaStream_t stream, std::shared_ptr<Graph> graph,
                         cudaStreamCaptureMode mode) {
    LIVE;
    static std::atomic<unsigned long long> ids{1};
    graph->mode = mode;
    graph->id = ids++;
    stream_of(stream).capture = graph;
    std::lock_guard<std::mutex> held(captures_lock);
    captures.push_back(graph);
    strict_captures++;
    return cudaSuccess;
}
static std::unordered_map<Graph *, Held *> &graphs = *new std::unordered_map<Graph *, Held *>;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    auto graph = std::make_shared<Graph>();
    {
        std::lock_guard<std::mutex> held(captures_lock);
        graphs[graph.get()] = new Held{graph, {}};
    }
    return begun(stream, graph, mode);
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t into, const void *,
                                          const void *, size_t, cudaStreamCaptureMode mode) {
    return begun(stream, ((Held *)into)->graph, mode);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *into) {
    auto graph = stream_of(stream).capture;
    if (!graph) return given(cudaErrorInvalidValue);
    for (Stream *one : all())
        if (one->capture == graph) one->capture = nullptr;
    std::lock_guard<std::mutex> held(captures_lock);
    strict_captures--;
    std::vector<std::weak_ptr<Graph>> others;
    for (auto &each : captures)
        if (each.lock() && each.lock() != graph) others.push_back(each);
    captures = others;
    if (graph->broken) {
        *into = nullptr;
        return given(cudaErrorStreamCaptureInvalidated);
    }
    *into = (cudaGraph_t)graphs[graph.get()];
    return failed() ? given(failed()) : cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    LIVE;
    const auto graph = stream_of(stream).capture;
    *status = !graph          ? cudaStreamCaptureStatusNone
              : graph->broken ? cudaStreamCaptureStatusInvalidated
                              : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
static cudaError_t told(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
                        cudaGraph_t *into, const cudaGraphNode_t **nodes, size_t *count) {
    const auto graph = stream_of(stream).capture;
    cudaStreamIsCapturing(stream, status);
    if (!graph) return cudaSuccess;
    if (id) *id = graph->id;
    std::lock_guard<std::mutex> held(captures_lock);
    if (into) *into = (cudaGraph_t)graphs[graph.get()];
    if (nodes) *nodes = nullptr;
    if (count) *count = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **nodes, size_t *count) {
    return told(stream, status, id, graph, nodes, count);
}
cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **nodes, const void **, size_t *count) {
    return told(stream, status, id, graph, nodes, count);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const void **, size_t *count) {
#if IMITATED_CUDA < 13000
    return told(stream, status, id, nullptr, nullptr, nullptr);
#else
    return told(stream, status, id, graph, nodes, count);
#endif
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, void *, ...) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    std::swap(*mode, mode_of_thread);
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, ...) {
    *made = (cudaGraphExec_t) new Held{((Held *)graph)->graph, {}};
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph,
                                          unsigned long long) {
    return cudaGraphInstantiate(made, graph);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    LIVE;
    stream_of(stream).put(*((Held *)graph)->graph);
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void *nodes, size_t *count) {
    if (!nodes) *count = ((Held *)graph)->graph->tasks.size();
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    auto *one = (Held *)graph;
    std::lock_guard<std::mutex> held(captures_lock);
    graphs.erase(one->graph.get());
    for (auto &[function, data] : one->objects) function(data);
    delete one;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete (Held *)graph;
    return cudaSuccess;
}
struct UserObject {
    void *pointer;
    cudaHostFn_t destroy;
};
cudaError_t cudaUserObjectCreate(cudaUserObject_t *made, void *pointer, cudaHostFn_t destroy,
                                 unsigned, unsigned) {
    *made = (cudaUserObject_t) new UserObject{pointer, destroy};
    return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned,
                                      unsigned) {
    auto *one = (UserObject *)object;
    ((Held *)graph)->objects.emplace_back(one->destroy, one->pointer);
    return cudaSuccess;
}

}  // extern "C"
