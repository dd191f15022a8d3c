// The limits of the machine itself, which the kernels are held against.
#pragma once

#include <cstdint>

namespace limelight {

// Floating-point operations a second in multiply-adds (of doubles if `wide`).
double peak_flops(int threads, bool wide);

// Does so many floating-point operations in multiply-adds that wait for nothing, in as many parts as there are threads.
void multiply_adds(int threads, double flops, bool wide);

// Bytes a second, reading a buffer of so many bytes again and again: that of a cache where it fits into one.
double read_bandwidth(int threads, int64_t bytes);

// Reads memory once, in order, in as many parts as there are threads.
void read_once(int threads, const void* data, int64_t bytes);

}  // namespace limelight
