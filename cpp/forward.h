// Attention over a whole problem: cut into tasks, run on threads, joined.
#pragma once

#include <string>
#include <vector>

#include "problem.h"

namespace limelight {

void forward(const Problem& p, int threads);

// The instruction sets that this machine has, the best last, and the one in use. LIMELIGHT_ISA in
// the environment, or set_isa, forces one.
std::vector<std::string> available_isas();
std::string isa();
void set_isa(const std::string& name);

// What the machine itself can do with this instruction set: floating-point operations a second in
// multiply-adds (of doubles if `wide`), and bytes a second read from memory.
double peak_flops(int threads, bool wide);
double read_bandwidth(int threads);

}  // namespace limelight
