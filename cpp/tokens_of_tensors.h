// Steps of a model made of tensors, with the checks: what does not pass is nothing here, and is left to PyTorch. In Python the
// checks would take longer than a small step does.
#pragma once

#include <array>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels.h"
#include "tensors.h"

namespace limelight {

// A tensor of this type that the kernels may read; where gradients are recorded (`grad`), it has none.
inline bool is_operand(const Tensor& x, Type type, bool grad) {
    return x.is_plain() && x.type() == type && !(grad && x.requires_grad());
}

// The rows of a contiguous x, unless it has no numbers.
inline bool are_rows(const Tensor& x, bool grad) {
    return x.is_plain() && x.elements() > 0 && x.axes() > 0 && x.is_contiguous() && !(grad && x.requires_grad());
}

// The norm of the rows of x, into `out`; weight (width) or None.
inline std::optional<RmsNorm> rms_norm_of(const Tensor& x, const Tensor& weight, char* out, double eps, bool grad) {
    if (!are_rows(x, grad)) return std::nullopt;
    if (weight.given()) {
        if (!is_operand(weight, x.type(), grad) || weight.elements() != x.width()) return std::nullopt;
        if (!weight.is_contiguous()) return std::nullopt;
    }
    return RmsNorm{x.elements() / x.width(), x.width(), x.type(), x.data(), weight.data(), out, eps};
}

// What is done to x before it is multiplied: the norm with these weights, or None, and eps.
using Norm = std::pair<Candidate, double>;

struct LinearStep {
    Linear linear;
    std::optional<RmsNorm> norm;
    std::vector<char> normed;  // its result
};

// norm(x) weightᵀ + bias for layers (weight, bias), into `outs`, which are contiguous and fit. A residual is for one layer.
inline std::optional<LinearStep> linear_of(const Tensor& x, const std::vector<std::pair<Candidate, Candidate>>& layers,
                                           const std::vector<Tensor>& outs, const std::optional<Norm>& norm,
                                           const Tensor& residual, bool grad) {
    if (!are_rows(x, grad) || layers.size() > kLinearParts || layers.size() != outs.size()) return std::nullopt;
    LinearStep step{{x.elements() / x.width(), x.width(), x.type(), x.data(), 0, {}}, std::nullopt, {}};
    Linear& l = step.linear;
    if (l.rows > kLinearRows) return std::nullopt;
    // PyTorch multiplies pairs of bfloat16 of any width, and is as quick or quicker from four rows on.
    const bool has_rest = l.type == Type::bf16 && kernels().multiplies_bf16 && l.D % 32;
    if (has_rest && l.rows > 3) return std::nullopt;
    for (size_t i = 0; i < layers.size(); ++i) {
        const auto& [weight, bias] = layers[i];
        if (!is_operand(weight, l.type, grad) || weight.axes() != 2) return std::nullopt;
        if (weight.width() != l.D || !weight.has_contiguous_rows()) return std::nullopt;
        const int64_t N = weight.size(0);
        if (bias.given()) {
            if (!is_operand(bias, l.type, grad) || bias.axes() != 1) return std::nullopt;
            if (bias.size(0) != N || !bias.has_contiguous_rows()) return std::nullopt;
        }
        if (residual.given()) {
            if (!is_operand(residual, l.type, grad) || !residual.is_contiguous()) return std::nullopt;
            if (residual.elements() != l.rows * N) return std::nullopt;
        }
        l.parts[l.count++] = {weight.data(), N, weight.stride(0), bias.data(), residual.data(), outs[i].data()};
    }
    if (norm) {
        step.normed.resize(x.bytes());
        step.norm = rms_norm_of(x, norm->first, step.normed.data(), norm->second, grad);
        if (!step.norm) return std::nullopt;
        l.x = step.normed.data();
    }
    return step;
}

inline void run_linear(const LinearStep& step, int threads) {
    if (step.norm) kernels().rms_norm(*step.norm, threads);
    kernels().linear(step.linear, threads);
}

// Angles by which tokens are rotated, and how: cosines and sines, contiguous (N, width / 2) or (B, 1, N, width / 2), the
// width of the features that are rotated, and whether pairs are neighbours.
using Angles = std::tuple<Candidate, Candidate, int64_t, bool>;

// A rotation of tensors (B, heads, N, D) of this type, which are still to be given.
inline std::optional<Rotation> rotation_by(const Angles& angles, int64_t B, int64_t N, int64_t D, Type type,
                                           bool grad) {
    const auto& [cos, sin, width, interleaved] = angles;
    const int64_t half = width / 2, count = cos.elements();
    for (const Tensor* x : {static_cast<const Tensor*>(&cos), static_cast<const Tensor*>(&sin)})
        if (!is_operand(*x, type, grad) || !x->is_contiguous() || x->axes() == 0 || x->width() != half ||
            x->elements() != count)
            return std::nullopt;
    if (width > D || (count != N * half && count != B * N * half)) return std::nullopt;
    const int64_t angle_batch = count == N * half ? 0 : N * half;
    return Rotation{B, N, D, width, type, interleaved, cos.data(), sin.data(), angle_batch, 0, {}};
}

// Tensors (x, out), (B, heads, N, D), of which the first gives the sizes, to be rotated.
inline std::optional<Rotation> rotation_of(const std::vector<std::pair<Candidate, Candidate>>& tensors,
                                           const Angles& angles, bool grad) {
    if (tensors.empty() || tensors.size() > 2) return std::nullopt;
    const Tensor& first = tensors[0].first;
    if (!first.is_plain() || first.axes() != 4) return std::nullopt;
    const int64_t B = first.size(0), N = first.size(2), D = first.size(3);
    std::optional<Rotation> r = rotation_by(angles, B, N, D, first.type(), grad);
    if (!r) return std::nullopt;
    for (const auto& [x, out] : tensors) {
        if (!is_operand(x, r->type, grad) || x.axes() != 4 || !x.has_contiguous_rows()) return std::nullopt;
        if (x.size(0) != B || x.size(2) != N || x.size(3) != D || !out.has_contiguous_rows()) return std::nullopt;
        r->parts[r->count++] = {x.size(1), x.rows(), out.rows()};
    }
    return r;
}

// A step of attention with a cache. The rotation writes the keys into it, and `values` are rotated by nothing.
struct CacheStep {
    Rotation rotation, values;
    Problem problem;
    std::vector<char> turned;  // the rotated queries
};

// One new token of each sequence, projected and contiguous: q (B, 1, Hq D), k and v (B, 1, Hkv D). Its key and value become
// row `length` of the cache, keys and values (B, Hkv, room, D), and its query attends to all rows up to them; `out` is like q.
inline std::optional<CacheStep> cache_step_of(const std::array<Candidate, 3>& projected,
                                              const std::array<Candidate, 2>& cache, int64_t length,
                                              const std::optional<Angles>& angles, double scale, const Tensor& out,
                                              bool grad) {
    const auto& [q, k, v] = projected;
    const auto& [keys, values] = cache;
    if (!q.is_plain()) return std::nullopt;
    const Type type = q.type();
    for (const Candidate& x : projected)
        if (!is_operand(x, type, grad) || x.axes() != 3 || x.size(1) != 1 || !x.is_contiguous()) return std::nullopt;
    for (const Candidate& x : cache)
        if (!is_operand(x, type, grad) || x.axes() != 4 || !x.has_contiguous_rows() || x.size(2) <= length)
            return std::nullopt;
    const int64_t B = q.size(0), H = keys.size(1), D = keys.size(3);
    for (const Candidate* x : {&k, &v})
        if (x->size(0) != B || x->width() != H * D) return std::nullopt;
    for (const Candidate& x : cache)
        if (x.size(0) != B || x.size(1) != H || x.size(3) != D) return std::nullopt;
    if (B * H * D == 0 || q.width() % (H * D) || !std::isfinite(scale)) return std::nullopt;

    const int64_t Hq = q.width() / D;
    const auto heads_of = [&](char* data, int64_t heads) { return Rows{data, type, heads * D, D, heads * D}; };
    const auto new_row = [&](const Tensor& x) {
        Rows rows = x.rows();
        rows.data += length * rows.row * (x.bytes() / x.elements());
        return rows;
    };
    CacheStep step;
    step.turned.resize(q.bytes());
    const Rotation nothing{B, 1, D, 0, type, false, nullptr, nullptr, 0, 0, {}};
    step.rotation = step.values = nothing;
    if (angles) {
        const std::optional<Rotation> found = rotation_by(*angles, B, 1, D, type, grad);
        if (!found) return std::nullopt;
        step.rotation = *found;
    }
    step.rotation.count = 2, step.values.count = 1;
    step.rotation.parts[0] = {Hq, heads_of(q.data(), Hq), heads_of(step.turned.data(), Hq)};
    step.rotation.parts[1] = {H, heads_of(k.data(), H), new_row(keys)};
    step.values.parts[0] = {H, heads_of(v.data(), H), new_row(values)};
    Problem& p = step.problem;
    p.q = heads_of(step.turned.data(), Hq), p.k = keys.rows(), p.v = values.rows(), p.out = heads_of(out.data(), Hq);
    p.B = B, p.Hq = Hq, p.Hkv = H, p.N = 1, p.M = length + 1, p.D = p.Dv = D;
    p.scale = scale;
    return step;
}

inline void run_cache_step(const CacheStep& step, int threads) {
    kernels().rotate(step.rotation, threads);
    kernels().rotate(step.values, threads);
    kernels().forward(step.problem, threads);
}

}  // namespace limelight
