// What a large call costs beside its work.
#pragma once

#include "problem.h"

namespace limelight {

// Waking a thread costs more than a few microseconds of work saves: multiplications that are worth it.
constexpr double kWorthAThread = 1e6;

// Memory that is read again and again, such as a model's weights, moves to large pages now, where the system can do it.
void move_to_large_pages(const char* data, int64_t bytes);

// Large results are fresh memory, whose first touch costs a page fault for every page: ask for large ones.
void ask_for_large_pages(const Rows& x, int64_t batch, int64_t heads, int64_t rows, int64_t width);

}  // namespace limelight
