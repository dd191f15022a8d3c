// The OpenMP threads that PyTorch computes with.
//
// They go on spinning for a while after each of PyTorch's operations, so threads of our own would share the cores with
// them, and a job that follows a matrix product would wait for its share. On the same threads it starts at once.
#pragma once

namespace limelight {

// Calls work(data) on the caller and on up to `threads` − 1 other threads, and returns when all have returned.
using ParallelRegion = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

// Returns the parallel region of the OpenMP runtime in this process, or null where there is none to be used. In a forked
// child there is none: it has the runtime's memory, but not its threads, and would wait for them for ever.
ParallelRegion torch_threads();

}  // namespace limelight
