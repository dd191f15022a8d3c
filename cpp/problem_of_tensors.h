// Problems made of tensors, and the checks that need no words: what does not pass goes to Python, which says what is wrong.
#pragma once

#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "tensors.h"

namespace limelight {

// The keys that queries may attend to: those in a query's spans and where the dense mask is true.
struct AllowedKeys {
    Spans spans;
    Grid dense;
};

// Spans (batch or 1, N, count, 2) of keys for each query.
inline Spans spans_of(const Tensor& x) {
    if (!x.given()) return {};
    return {reinterpret_cast<const int32_t*>(x.data()), x.size(0) == 1 ? 0 : x.stride(0), x.size(2)};
}

inline const int64_t* places_of(const Tensor& x) { return reinterpret_cast<const int64_t*>(x.data()); }

// Factors (batch, head, row) of rows of bytes.
inline void set_scale(Rows& x, const Tensor& scale) {
    x.scale = reinterpret_cast<const float*>(scale.data());
    x.scale_batch = scale.stride(0), x.scale_head = scale.stride(1);
}

using Scaling = std::array<double, 3>;  // scale, softcap or 0, temperature

// A problem without other options.
inline Problem of_tensors(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Scaling& scaling,
                          const std::optional<AllowedKeys>& mask) {
    Problem p;
    p.q = q.rows(), p.k = k.rows(), p.v = v.rows(), p.out = out.rows();
    p.B = q.size(0), p.Hq = q.size(1), p.Hkv = k.size(1);
    p.N = q.size(2), p.M = k.size(2), p.D = q.size(3), p.Dv = v.size(3);
    if (mask) p.spans = mask->spans, p.mask = mask->dense;
    p.scale = scaling[0], p.softcap = scaling[1], p.temperature = scaling[2];
    return p;
}

// The same with the normalisers, where given; nothing where a tensor cannot be used where it lies, or `out` is not like v.
inline std::optional<Problem> plain_problem(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                            const Scaling& scaling, const std::optional<AllowedKeys>& mask,
                                            const Tensor& normalisers) {
    for (const Tensor* x : {&q, &k, &v, &out})
        if (!x->data() || !x->has_contiguous_rows()) return std::nullopt;
    if (out.width() != v.width() || out.type() != v.type()) return std::nullopt;
    Problem p = of_tensors(q, k, v, out, scaling, mask);
    p.normalisers = normalisers.data();
    return p;
}

// A problem without other options whose keys and values are bytes, with a scale for each row; nothing where a tensor cannot
// be used where it lies or does not fit the others.
inline std::optional<Problem> plain_int8_problem(const Tensor& q, const Tensor& k, const Tensor& k_scale,
                                                 const Tensor& v, const Tensor& v_scale, const Tensor& out,
                                                 std::optional<double> scale) {
    for (const Tensor* x : {&q, &k, &k_scale, &v, &v_scale, &out})
        if (!x->data() || x->axes() != 4) return std::nullopt;
    for (const Tensor* x : {&q, &k, &v, &out})
        if (!x->has_contiguous_rows()) return std::nullopt;
    const int64_t B = q.size(0), H = k.size(1), M = k.size(2);
    if (H == 0 || (scale && !std::isfinite(*scale))) return std::nullopt;
    for (const Tensor* x : {&k, &k_scale, &v, &v_scale})
        if (x->size(0) != B || x->size(1) != H || x->size(2) != M) return std::nullopt;
    for (const Tensor* x : {&k_scale, &v_scale})
        if (x->type() != Type::f32 || x->size(3) != 1 || x->stride(2) != 1) return std::nullopt;
    const bool types = k.type() == Type::i8 && v.type() == Type::i8 && q.type() != Type::i8 && out.type() == q.type();
    if (!types || q.size(3) != k.size(3) || q.size(1) % H || out.size(3) != v.size(3)) return std::nullopt;
    Problem p = of_tensors(q, k, v, out, {scale ? *scale : 1 / std::sqrt(double(q.size(3))), 0, 1}, std::nullopt);
    set_scale(p.k, k_scale), set_scale(p.v, v_scale);
    return p;
}

// Whether tensors (B, H, N, width) of floats on the CPU are queries, keys and values that fit each other.
inline bool fit_each_other(const Tensor& q, const Tensor& k, const Tensor& v) {
    const int64_t Hq = q.size(1), Hkv = k.size(1), N = q.size(2), M = k.size(2), D = q.size(3);
    constexpr int64_t most = int64_t(1) << 31;
    const bool alike = q.type() == k.type() && q.size(0) == k.size(0) && D == k.size(3) && D > 0;
    const bool grouped = Hq == Hkv || (Hkv > 0 && Hq % Hkv == 0);
    const bool values = v.size(0) == k.size(0) && v.size(1) == Hkv && v.size(2) == M;
    return alike && grouped && values && N < most && M < most;
}

// (B, Hq, Hkv, N, M, D) of tensors that are ordinary and fit each other, or None.
inline nanobind::object ordinary_sizes(const Candidate& q, const Candidate& k, const Candidate& v) {
    for (const Tensor* x : {&q, &k, &v})
        if (!x->is_read() || !x->on_cpu() || !x->is_float() || x->axes() != 4) return nanobind::none();
    if (!fit_each_other(q, k, v)) return nanobind::none();
    return nanobind::make_tuple(q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3));
}

// A problem without options but the scale, of plain tensors for which no gradient is recorded; else nothing.
inline std::optional<Problem> quick_problem(const Candidate& q, const Candidate& k, const Candidate& v,
                                            const Tensor& out, std::optional<double> scale, bool grad) {
    for (const Tensor* x : {&q, &k, &v})
        if (!x->is_plain() || x->axes() != 4 || (grad && x->requires_grad())) return std::nullopt;
    if (!fit_each_other(q, k, v) || (scale && !std::isfinite(*scale))) return std::nullopt;
    const double factor = scale ? *scale : std::pow(double(q.size(3)), -0.5);
    return plain_problem(q, k, v, out, {factor, 0, 1}, std::nullopt, Tensor());
}

}  // namespace limelight
