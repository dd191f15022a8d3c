// The kernels of one instruction set, and how the work is cut into tasks for them.
#pragma once

#include <memory>

#include "problem.h"

namespace limelight {

// How the rows of a problem are cut. Depends on the problem alone, never on the number of threads,
// so neither do the results.
struct Cut {
    bool grouped;      // a unit is a key head with its whole group of query heads, otherwise a query head
    int64_t group;     // query heads to a key head
    int64_t units;     // a batch
    int64_t rows;      // a unit
    int64_t vectors;   // a unit
    int64_t strips;    // a unit, of three vectors
    bool even;         // the last two strips share four vectors, because one alone would remain
    int64_t together;  // strips in one task, which share what they convert
    int64_t abreast;   // heads that walk side by side: 1, or all of them where they are compared
    int64_t chunk;     // keys in one task
    int64_t chunks;
};

struct Kernels {
    const char* name;
    Cut (*cut)(const Problem&);
    size_t (*scratch)(const Problem&, const Cut&);        // bytes a thread needs
    size_t (*partial)(const Problem&, const Cut&);        // bytes of running sums a unit and chunk needs
    void (*attend)(const Problem&, const Cut&, const Task&, char* scratch);
    // Joins the running sums of the chunks of one unit, whose first lies at `partial`.
    void (*join)(const Problem&, const Cut&, int64_t batch, int64_t unit, const char* partial);
    // Questions: the rows of a task, joined like running sums from records of so many bytes a row; then columns.
    size_t (*row_scratch)(const Problem&, const Questions&, const Cut&);
    size_t (*record)(const Problem&, const Questions&);
    void (*ask_rows)(const Problem&, const Questions&, const Cut&, const Task&, char* scratch);
    void (*join_records)(const Problem&, const Questions&, const Cut&, int64_t batch, int64_t unit, char* records);
    Cut (*cut_columns)(const Problem&, const Questions&);  // a chunk of keys is a task
    size_t (*column_scratch)(const Problem&, const Questions&, const Cut&);
    void (*ask_columns)(const Problem&, const Questions&, const Cut&, const Task&, const Share&, char* scratch);
    bool (*has_reach)(const Problem&);
    void (*measure_keys)(const Problem&, int64_t batch, int64_t head, char* scratch);  // fills `reach`
    int64_t (*visitors)(const Problem&);  // rows that the gradient takes together
    size_t (*gradient_scratch)(const Problem&, const Gradients&);
    void (*differentiate)(const Problem&, const Gradients&, const Square&, char* scratch);
    size_t (*linear_scratch)(const Linear&);
    void (*multiply)(const Linear&, int64_t begin, int64_t end, char* scratch);
    // For measuring the machine.
    double (*spin)(int64_t rounds, bool wide);
    float (*read)(const float* data, int64_t n);
};

// Fills in `reach` of a problem that has use for it; what it points to is returned.
std::unique_ptr<char[]> find_reach(Problem& p, const Kernels& k, int threads);

// The kernels in use: the best that the machine has, unless one is forced.
const Kernels& kernels();

extern const Kernels baseline_kernels;
#if defined(LIMELIGHT_X86)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

}  // namespace limelight
