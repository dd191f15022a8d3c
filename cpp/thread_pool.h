// Tasks on several threads: PyTorch's own (torch_threads.h), or a small pool that sleeps until there is work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace limelight {

// Jobs with fewer multiplications run on one thread: waking another takes longer than it would save.
constexpr double kWorthAThread = 4e5;

// Calls work(i, scratch) once for every i in [0, count), each on some thread with `scratch_bytes` of
// aligned memory of its own, and returns when all are done. The caller works too. An exception from
// `work`, from the interrupt check or a failed allocation is rethrown here, once no thread works any more.
void parallel(int64_t count, int threads, size_t scratch_bytes, const std::function<void(int64_t, char*)>& work);

// The caller of `parallel` calls `check` between its tasks, several times a second; what it throws ends the job.
void set_interrupt_check(void (*check)());

}  // namespace limelight
