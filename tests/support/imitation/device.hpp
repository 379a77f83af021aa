// What both halves share: streams that do tasks in order, graphs that hold them, an error that stays.
#pragma once
#include <driver_types.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace imitated {

using Task = std::function<void()>;

// A place in a stream: passed or not, and when.
struct Mark {
    std::atomic<bool> passed{false};
    double at_ms = 0;
};

// What was captured; torch orders everything in a capture by one stream at the end of it.
struct Graph {
    std::vector<Task> tasks;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    unsigned long long id = 0;
    bool broken = false;
};

class Stream {
  public:
    Stream(int device, int priority);
    void put(Task task);  // into the graph that it captures, else onto the device
    void put_now(Task task);
    void put(const Graph &graph);
    std::shared_ptr<Mark> mark();
    bool idle();
    void wait();  // until all is over that was put before
    const int device, priority;
    const unsigned long long id;
    std::shared_ptr<Graph> capture;

  private:
    void run();
    std::mutex lock_;
    std::condition_variable come_, over_;
    std::deque<Task> tasks_;
    unsigned long long put_ = 0, over_count_ = 0;
};

Stream &stream_of(cudaStream_t handle);
int current_device();
int devices();
double now_ms();
void fail(cudaError_t error);  // for good, as a context that is lost
cudaError_t failed();

}  // namespace imitated
