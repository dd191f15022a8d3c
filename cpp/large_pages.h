// Large pages for memory that is large.
#pragma once

#include "problem.h"

namespace limelight {

// Moves memory that is read again and again, such as a model's weights, to large pages now, where the system can.
void move_to_large_pages(const char* data, int64_t bytes);

// Asks for large pages for a result in fresh memory, whose first touch costs a fault for every page.
void advise_large_pages(const Rows& x, int64_t batch, int64_t heads, int64_t rows, int64_t width);

}  // namespace limelight
