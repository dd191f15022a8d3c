// The kernels of one instruction set. kernels.cpp is compiled once for each.
#pragma once

#include <string>
#include <vector>

#include "problem.h"

namespace limelight {

// The family of a processor made by AMD, whose caches are prefetched in other ways than Intel's: 25 for Zen 3 and Zen 4, 26
// for Zen 5. 0 for other makers.
int amd_family();

// Lets amd_family return this number, so that every way of reading can be tested on every machine; −1 is the truth again.
void force_amd_family(int family);

struct Kernels {
    const char* name;
    // Writes `out`, and `lse` and `normalisers` where they are not null.
    void (*forward)(const Problem& p, int threads);
    // Adds the keys of a problem to the running softmax of its rows; `out`, `lse`, `normalisers` and `sink` have no part.
    void (*accumulate)(const Problem& p, const RunningRows& rows, int threads);
    // Adds the gradients of a problem whose `out` and `normalisers` are known.
    void (*backward)(const Problem& p, const Gradients& g, int threads);
    // Computes statistics of the weights of a problem whose values have width 0.
    void (*statistics)(const Problem& p, const Statistics& s, int threads);
    // The bytes of one row's record of statistics of rows.
    int64_t (*record_bytes)(const Problem& p, const std::vector<Request>& requests);
    // Adds the keys of a problem to the records of its rows.
    void (*accumulate_statistics)(const Problem& p, const std::vector<Request>& requests, const RunningRecords& records,
                                  int threads);
    // Writes the statistics, and `lse` and `normalisers`, of rows from their records.
    void (*finish_statistics)(const Problem& p, const std::vector<Request>& requests, const RunningRecords& records);
    void (*linear)(const Linear& l, int threads);
    // The work of a forward pass as it is cut for threads.
    Cut (*cut)(const Problem& p);
    void (*rms_norm)(const RmsNorm& n, int threads);
    void (*rotate)(const Rotation& r, int threads);
    // For measuring the machine: `rounds` of independent multiply-adds, returning the operations done; a plain read.
    double (*multiply_add_loop)(int64_t rounds, bool wide);
    float (*sum_all)(const float* data, int64_t n);
    bool multiplies_bf16 = false;  // the processor multiplies pairs of bfloat16
};

// The kernels in use: the best that the machine has, unless LIMELIGHT_ISA in the environment or set_isa forces one.
const Kernels& kernels();

// The names of the instruction sets that this machine has, the best last.
std::vector<std::string> available_isas();
void set_isa(const std::string& name);

extern const Kernels baseline_kernels;
#if defined(LIMELIGHT_X86)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

}  // namespace limelight
