// A linear layer for a few rows.
#pragma once

#include "problem.h"

namespace limelight {

void linear(const Linear& l, int threads);

}  // namespace limelight
