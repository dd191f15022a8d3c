// The gradient over a whole problem.
#pragma once

#include "problem.h"

namespace limelight {

void backward(const Problem& p, const Gradients& g, int threads);

}  // namespace limelight
