// Questions to the weights of a whole problem.
#pragma once

#include "problem.h"

namespace limelight {

void ask(const Problem& p, const Questions& a, int threads);

}  // namespace limelight
