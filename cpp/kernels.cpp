// The kernels, compiled once for each instruction set.
#include "kernels.h"

#include "backward.h"
#include "forward.h"
#include "linear.h"
#include "machine.h"
#include "statistics/statistics.h"
#include "tokens.h"

namespace limelight {
namespace LIMELIGHT_ISA {
namespace {

void run_forward(const Problem& p, int threads) {
    p.wide() ? forward<double>(p, nullptr, threads) : forward<float>(p, nullptr, threads);
}

void run_accumulate(const Problem& p, const RunningRows& rows, int threads) {
    p.wide() ? forward<double>(p, &rows, threads) : forward<float>(p, &rows, threads);
}

void run_backward(const Problem& p, const Gradients& g, int threads) {
    p.wide() ? backward<double>(p, g, threads) : backward<float>(p, g, threads);
}

void run_statistics(const Problem& p, const Statistics& s, int threads) {
    p.wide() ? statistics<double>(p, s, threads) : statistics<float>(p, s, threads);
}

int64_t run_record_bytes(const Problem& p, const std::vector<Request>& requests) {
    return p.wide() ? record_bytes<double>(p, requests) : record_bytes<float>(p, requests);
}

void run_accumulate_statistics(const Problem& p, const std::vector<Request>& requests, const RunningRecords& records,
                               int threads) {
    p.wide() ? accumulate_records<double>(p, requests, records, threads)
             : accumulate_records<float>(p, requests, records, threads);
}

void run_finish_statistics(const Problem& p, const std::vector<Request>& requests, const RunningRecords& records) {
    p.wide() ? finish_records<double>(p, requests, records) : finish_records<float>(p, requests, records);
}

void run_linear(const Linear& l, int threads) {
    l.type == Type::f64 ? linear<double>(l, threads) : linear<float>(l, threads);
}

Cut run_cut(const Problem& p) { return p.wide() ? cut<double>(p) : cut<float>(p); }

void run_rms_norm(const RmsNorm& n, int threads) {
    n.type == Type::f64 ? rms_norm<double>(n, threads) : rms_norm<float>(n, threads);
}

void run_rotate(const Rotation& r, int threads) {
    r.type == Type::f64 ? rotate<double>(r, threads) : rotate<float>(r, threads);
}

double run_multiply_adds(int64_t rounds, bool wide) {
    return wide ? multiply_add_loop<double>(rounds) : multiply_add_loop<float>(rounds);
}

}  // namespace
}  // namespace LIMELIGHT_ISA

#define LIMELIGHT_NAME_(isa) isa##_kernels
#define LIMELIGHT_NAME(isa) LIMELIGHT_NAME_(isa)
#define LIMELIGHT_TEXT_(isa) #isa
#define LIMELIGHT_TEXT(isa) LIMELIGHT_TEXT_(isa)

const Kernels LIMELIGHT_NAME(LIMELIGHT_ISA) = {
    /* name */ LIMELIGHT_TEXT(LIMELIGHT_ISA),
    /* forward */ LIMELIGHT_ISA::run_forward,
    /* accumulate */ LIMELIGHT_ISA::run_accumulate,
    /* backward */ LIMELIGHT_ISA::run_backward,
    /* statistics */ LIMELIGHT_ISA::run_statistics,
    /* record_bytes */ LIMELIGHT_ISA::run_record_bytes,
    /* accumulate_statistics */ LIMELIGHT_ISA::run_accumulate_statistics,
    /* finish_statistics */ LIMELIGHT_ISA::run_finish_statistics,
    /* linear */ LIMELIGHT_ISA::run_linear,
    /* cut */ LIMELIGHT_ISA::run_cut,
    /* rms_norm */ LIMELIGHT_ISA::run_rms_norm,
    /* rotate */ LIMELIGHT_ISA::run_rotate,
    /* multiply_add_loop */ LIMELIGHT_ISA::run_multiply_adds,
    /* sum_all */ LIMELIGHT_ISA::sum_all,
};

}  // namespace limelight
