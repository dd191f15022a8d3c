// The extension module: addresses and strides in, nothing of PyTorch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <tuple>

#include "backward.h"
#include "forward.h"
#include "linear_call.h"
#include "pages.h"
#include "questions.h"

namespace nb = nanobind;
using namespace limelight;

namespace {

// Addresses and the tuples that tensors give: objects for them would cost more than a small call.
using Address = int64_t;                // 0: absent
using Strides = std::array<int64_t, 4>;  // in elements
using Dense = std::array<int64_t, 6>;    // data, type, and strides of batch, head, row, key
using Keys = std::array<int64_t, 3>;     // data, stride of batch, spans a query

using ProblemTuple = std::tuple<
    std::array<int64_t, 6>, int64_t, int, int,                  // (B, Hq, Hkv, N, M, D), Dv, types of q and v
    Address, Strides, Address, Strides, Address, Strides,       // q, k, v
    Address, Strides, Address,                                  // out, lse
    std::optional<Keys>, std::optional<Dense>, std::optional<Dense>,  // spans, mask, bias
    Address, Address, Address,                                  // slopes, offsets, sink
    double, double, double, double, uint64_t,                   // scale, softcap, temperature, dropout, seed
    std::optional<Keys>, std::optional<Keys>>;                  // k and v as bytes: scales, their strides of batch and head

using GradientsTuple = std::tuple<
    int, Address, Strides, Address,                        // type of dout, dout, dlse
    Address, Strides, Address, Strides, Address, Strides,  // dq, dk, dv
    std::optional<Dense>, Address, Address, Address, Address>;  // bias, offsets, slopes, heat, delta

using QuestionsTuple = std::tuple<
    bool, bool, Address, Address, Address,                                       // known, finite; entropy, distance, mass
    std::optional<Keys>, std::optional<Dense>,                                   // the mask of mass
    Address, Address, int64_t,                                                   // top: values, keys, how many
    Address, Address, int64_t,                                                   // received, diagonals, radius
    int, Address, Strides, Address, Strides, int64_t,                            // type of u, u, sent, width
    Address, int64_t, int64_t, bool, Address>;                                   // pool, rows, cols, largest; products

char* address(Address p) { return reinterpret_cast<char*>(p); }
Rows rows(Address data, int type, const Strides& s) { return {address(data), Type(type), s[0], s[1], s[2]}; }

Rows scaled(Rows x, const std::optional<Keys>& scale) {
    if (!scale) return x;
    const auto [data, batch, head] = *scale;
    x.type = Type::i8;
    x.scale = reinterpret_cast<const float*>(data);
    x.scale_batch = batch;
    x.scale_head = head;
    return x;
}

Grid grid(const std::optional<Dense>& g) {
    if (!g) return {};
    const auto [data, type, batch, head, row, col] = *g;
    return {address(data), Type(type), batch, head, row, col};
}

Spans spans(const std::optional<Keys>& s) {
    if (!s) return {};
    const auto [data, batch, count] = *s;
    return {reinterpret_cast<const int32_t*>(data), batch, count};
}

Problem problem(const ProblemTuple& t) {
    const auto& [sizes, Dv, type, v_type, q, q_strides, k, k_strides, v, v_strides, out, out_strides, lse, allowed, mask,
                 bias, slopes, offsets, sink, scale, softcap, temperature, dropout, seed, k_scale, v_scale] = t;
    const auto [B, Hq, Hkv, N, M, D] = sizes;
    return {B, Hq, Hkv, N, M, D, Dv,
            rows(q, type, q_strides), scaled(rows(k, type, k_strides), k_scale), scaled(rows(v, v_type, v_strides), v_scale),
            rows(out, v_type, out_strides), address(lse), spans(allowed), grid(mask), grid(bias),
            address(slopes), address(offsets), address(sink), scale, softcap, temperature, dropout, seed};
}

Gradients gradients(const GradientsTuple& t, bool wide) {
    const auto& [type, dout, dout_strides, dlse, dq, dq_strides, dk, dk_strides, dv, dv_strides, bias, offsets, slopes,
                 heat, delta] = t;
    const int computed = int(wide ? Type::f64 : Type::f32);
    return {rows(dout, type, dout_strides), address(dlse), rows(dq, computed, dq_strides),
            rows(dk, computed, dk_strides), rows(dv, computed, dv_strides), grid(bias), address(offsets),
            address(slopes), address(heat), address(delta)};
}

Questions questions(const QuestionsTuple& t, bool wide) {
    const auto& [known, finite, entropy, distance, mass, mass_spans, mass_mask, top_values, top_keys, top, received, diagonals,
                 radius, u_type, u, u_strides, sent, sent_strides, width, pool, pool_rows, pool_cols, largest, products] = t;
    return {known, finite, address(entropy), address(distance), address(mass), spans(mass_spans), grid(mass_mask),
            address(top_values), reinterpret_cast<int64_t*>(top_keys), top, address(received), address(diagonals), radius,
            rows(u, u_type, u_strides), rows(sent, int(wide ? Type::f64 : Type::f32), sent_strides), width,
            address(pool), pool_rows, pool_cols, largest, address(products)};
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Attention kernels on plain addresses; limelight.backends.native is their only caller.";

    m.def(
        "forward",
        [](const ProblemTuple& t, int threads) {
            const Problem p = problem(t);
            nb::gil_scoped_release release;
            forward(p, threads);
        },
        nb::arg("problem"), nb::arg("threads"),
        "Writes softmax(logits / temperature) @ v to `out`, and the log-sum-exp of each row to `lse`.\n\n"
        "The problem is (sizes (B, Hq, Hkv, N, M, D), Dv, type of q and k, type of v, q, k, v and out each as\n"
        "address and strides, lse, spans (address, stride of batch, spans a query), mask and bias (address, type,\n"
        "strides), slopes, offsets, sink, scale, softcap, temperature, dropout, seed, and where k or v are bytes their\n"
        "scales (address, strides of batch and head)), with strides in elements.\n"
        "Address 0 and None mean absent.");

    m.def(
        "backward",
        [](const ProblemTuple& t, const GradientsTuple& of, int threads) {
            const Problem p = problem(t);
            const Gradients g = gradients(of, p.wide());
            nb::gil_scoped_release release;
            backward(p, g, threads);
        },
        nb::arg("problem"), nb::arg("gradients"), nb::arg("threads"),
        "Adds the gradients of a problem whose `out` and `lse` are known to memory that is zero at first.\n\n"
        "They are (type of dout, dout and strides, dlse; dq, dk and dv each as address and strides; bias (address,\n"
        "type, strides), offsets, slopes, heat, delta), all but dout in the compute type.");

    m.def(
        "ask",
        [](const ProblemTuple& t, const QuestionsTuple& of, int threads) {
            const Problem p = problem(t);
            const Questions a = questions(of, p.wide());
            nb::gil_scoped_release release;
            ask(p, a, threads);
        },
        nb::arg("problem"), nb::arg("questions"), nb::arg("threads"),
        "Answers questions about the weights of a problem, whose values are of width 0.\n\n"
        "They are (whether `lse` is known, whether u is finite; entropy, distance, mass, its spans and mask; top values,\n"
        "keys and how many;\n"
        "received, diagonals, radius; type of u, u and strides, Aᵀu and strides, width; pool, rows, cols, whether the\n"
        "largest; products), all but u and the keys in the compute type and zero at first.");

    m.def(
        "linear",
        [](int64_t rows, int64_t N, int64_t D, int type, Address x, Address w, int64_t stride, Address bias, Address out,
           int threads) {
            const Linear l{rows, N, D, Type(type), address(x), address(w), stride, address(bias), address(out)};
            nb::gil_scoped_release release;
            linear(l, threads);
        },
        nb::arg("rows"), nb::arg("N"), nb::arg("D"), nb::arg("type"), nb::arg("x"), nb::arg("w"), nb::arg("stride"),
        nb::arg("bias"), nb::arg("out"), nb::arg("threads"),
        "Writes x wᵀ + bias to `out`, for at most four contiguous rows of x (rows, D) and w (N, D).");

    m.def(
        "move_to_large_pages", [](Address data, int64_t bytes) { move_to_large_pages(address(data), bytes); },
        nb::arg("data"), nb::arg("bytes"), "Moves memory that is read again and again to large pages, where it can.");
    m.def("isa", &isa, "The instruction set in use.");
    m.def("available_isas", &available_isas, "The instruction sets that this machine has, the best last.");
    m.def("peak_flops", &peak_flops, nb::arg("threads"), nb::arg("wide") = false, nb::call_guard<nb::gil_scoped_release>(),
          "The machine's multiply-add peak, in floating-point operations a second.");
    m.def("read_bandwidth", &read_bandwidth, nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>(),
          "The machine's bandwidth of reading memory in order, in bytes a second.");
    m.def("set_isa", &set_isa, nb::arg("name"), "Use this instruction set from now on.");
}
