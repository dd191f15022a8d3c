#include "thread_pool.h"

#include <pthread.h>
#include <time.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "torch_threads.h"

namespace limelight {
namespace {

// Memory that a thread keeps from call to call; pages that were touched once stay warm.
class Scratch {
public:
    char* at_least(size_t bytes) {
        if (bytes > size_) {
            memory_.reset();
            size_ = 0;
            memory_.reset(static_cast<char*>(::operator new(bytes, std::align_val_t(64))));
            size_ = bytes;
        }
        return memory_.get();
    }

private:
    struct Free {
        void operator()(char* p) const { ::operator delete(p, std::align_val_t(64)); }
    };
    std::unique_ptr<char, Free> memory_;
    size_t size_ = 0;
};

char* scratch(size_t bytes) {
    thread_local Scratch own;
    return own.at_least(bytes);
}

// How numbers below the smallest normal one are treated, whatever a thread was set to: results must not depend on which
// thread computes them. On x86-64 results of arithmetic become 0 there, and inputs are read as they are: a multiply-add with a
// subnormal number takes an Intel processor 200 times as long as with others, and softmax makes many such weights.
class KernelArithmetic {
public:
#if defined(__SSE2__)
    KernelArithmetic() : before_(_mm_getcsr()) { _mm_setcsr((before_ & ~kReadAsZero) | kFlushToZero); }
    ~KernelArithmetic() { _mm_setcsr(before_); }

private:
    static constexpr unsigned kReadAsZero = 0x0040, kFlushToZero = 0x8000;
    unsigned before_;
#elif defined(__aarch64__)
    KernelArithmetic() {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        asm volatile("msr fpcr, %0" : : "r"(before_ & ~(uint64_t(1) << 24)));
    }
    ~KernelArithmetic() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

private:
    uint64_t before_;
#endif
};

std::atomic<void (*)()> interrupt_check{nullptr};

// Seconds, to a few milliseconds, in a few nanoseconds.
double coarse_time() {
#if defined(CLOCK_MONOTONIC_COARSE)
    constexpr clockid_t clock = CLOCK_MONOTONIC_COARSE;
#else
    constexpr clockid_t clock = CLOCK_MONOTONIC;
#endif
    timespec t;
    clock_gettime(clock, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Makes the interrupt check if this thread's last one is a while ago; returns true where it was made.
bool poll_interrupt() {
    thread_local double last = coarse_time();
    if (coarse_time() - last < 0.1) return false;
    if (const auto check = interrupt_check.load(std::memory_order_relaxed)) check();
    last = coarse_time();
    return true;
}

struct Job {
    Job(int64_t count, size_t scratch_bytes, const std::function<void(int64_t, char*)>* work)
        : count(count),
          scratch_bytes(scratch_bytes),
          work(work) {}

    int64_t count;
    size_t scratch_bytes;
    const std::function<void(int64_t, char*)>* work;
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;

    void run(bool caller) noexcept {
        const KernelArithmetic arithmetic;
        try {
            char* memory = scratch(scratch_bytes);
            for (int64_t i; !failed && (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
                // A signal's handler may call `parallel` as well, and leave other scratch memory.
                if (caller && poll_interrupt()) memory = scratch(scratch_bytes);
                (*work)(i, memory);
            }
        } catch (...) {
            if (!failed.exchange(true)) error = std::current_exception();
        }
    }
};

// Runs a job on the caller and on threads of PyTorch.
void run_in(ParallelRegion region, Job& job, int helpers) {
    struct Team {
        Job& job;
        std::thread::id caller;
    } team{job, std::this_thread::get_id()};
    const auto work = [](void* data) {
        const Team& team = *static_cast<Team*>(data);
        team.job.run(std::this_thread::get_id() == team.caller);
    };
    region(work, &team, unsigned(helpers) + 1, 0);
}

// Threads of our own, where PyTorch's cannot be had. They sleep until there is work.
class Pool {
public:
    std::mutex busy;  // one job at a time; whoever finds it taken works alone

    void run(Job& job, int helpers) {
        grow(helpers);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            job_ = &job;
            wanted_ = helpers;
            running_ = 0;
        }
        wake_.notify_all();
        job.run(true);
        std::unique_lock<std::mutex> lock(mutex_);
        wanted_ = 0;  // helpers that did not wake in time are no longer needed
        job_ = nullptr;
        done_.wait(lock, [&] { return running_ == 0; });
    }

private:
    void grow(int helpers) {
        try {
            for (; threads_ < helpers; ++threads_) std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {
            // The system has no more threads to give; those that there are do the work.
        }
    }

    void serve() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return wanted_ > 0; });
            --wanted_;
            ++running_;
            Job* job = job_;
            lock.unlock();
            job->run(false);
            lock.lock();
            if (--running_ == 0) done_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    Job* job_ = nullptr;
    int wanted_ = 0, running_ = 0, threads_ = 0;
};

// The pool lives as long as the process: its threads may still sleep while statics are destroyed. A
// forked child has none of its parent's threads, and its locks may be held, so it starts afresh.
std::atomic<Pool*> the_pool{nullptr};
[[maybe_unused]] const int forget_at_fork = pthread_atfork(nullptr, nullptr, [] { the_pool = nullptr; });

Pool& pool() {
    Pool* current = the_pool.load();
    if (current) return *current;
    Pool* fresh = new Pool;
    if (the_pool.compare_exchange_strong(current, fresh)) return *fresh;
    delete fresh;
    return *current;
}

}  // namespace

void parallel(int64_t count, int threads, size_t scratch_bytes, const std::function<void(int64_t, char*)>& work) {
    Job job(count, scratch_bytes, &work);
    const int helpers = static_cast<int>(std::min<int64_t>(threads, count)) - 1;
    std::unique_lock<std::mutex> lock;
    if (helpers > 0) lock = std::unique_lock<std::mutex>(pool().busy, std::try_to_lock);
    if (!lock.owns_lock()) job.run(true);
    else if (const ParallelRegion region = torch_threads()) run_in(region, job, helpers);
    else pool().run(job, helpers);
    if (job.error) std::rethrow_exception(job.error);
}

void set_interrupt_check(void (*check)()) { interrupt_check = check; }

}  // namespace limelight
