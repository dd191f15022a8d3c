// The extension module: addresses and strides in, nothing of PyTorch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>

#include "forward.h"

namespace nb = nanobind;
using namespace limelight;

namespace {

using Strides = std::array<int64_t, 4>;
using Dense = std::array<int64_t, 6>;  // data, type, and strides of batch, head, row, key
using Keys = std::array<int64_t, 3>;   // data, stride of batch, spans a query

char* address(int64_t p) { return reinterpret_cast<char*>(p); }
Rows rows(int64_t data, int type, const Strides& s) { return {address(data), Type(type), s[0], s[1], s[2]}; }
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

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Attention kernels on plain addresses; limelight.backends.native is their only caller.";

    // Addresses and the tuples that tensors give: objects for them would cost more than a small call.
    m.def(
        "forward",
        [](std::array<int64_t, 6> sizes, int64_t Dv, int type, int v_type, int64_t q, Strides q_strides, int64_t k,
           Strides k_strides, int64_t v, Strides v_strides, int64_t out, Strides out_strides, int64_t lse,
           std::optional<Keys> allowed, std::optional<Dense> mask, std::optional<Dense> bias, int64_t slopes, int64_t offsets, int64_t sink, double scale, double softcap,
           double temperature, int threads) {
            const auto [B, Hq, Hkv, N, M, D] = sizes;
            const Problem p{B, Hq, Hkv, N, M, D, Dv,
                            rows(q, type, q_strides), rows(k, type, k_strides), rows(v, v_type, v_strides),
                            rows(out, v_type, out_strides), address(lse), spans(allowed), grid(mask), grid(bias),
                            address(slopes), address(offsets), address(sink), scale, softcap, temperature};
            nb::gil_scoped_release release;
            forward(p, threads);
        },
        nb::arg("sizes"), nb::arg("Dv"), nb::arg("type"), nb::arg("v_type"), nb::arg("q"), nb::arg("q_strides"),
        nb::arg("k"), nb::arg("k_strides"), nb::arg("v"), nb::arg("v_strides"), nb::arg("out"), nb::arg("out_strides"),
        nb::arg("lse"), nb::arg("spans").none(), nb::arg("mask").none(), nb::arg("bias").none(), nb::arg("slopes"), nb::arg("offsets"),
        nb::arg("sink"), nb::arg("scale"), nb::arg("softcap"), nb::arg("temperature"), nb::arg("threads"),
        "Writes softmax(logits / temperature) @ v to `out`, and the log-sum-exp of each row to `lse`.\n\n"
        "`sizes` is (B, Hq, Hkv, N, M, D). Tensors are addresses with strides in elements (bytes for a boolean\n"
        "mask); a mask or bias is (address, type, strides), spans are (address, stride of batch, spans a query).\n"
        "Address 0 and None mean absent.");

    m.def("isa", &isa, "The instruction set in use.");
    m.def("available_isas", &available_isas, "The instruction sets that this machine has, the best last.");
    m.def("peak_flops", &peak_flops, nb::arg("threads"), nb::arg("wide") = false, nb::call_guard<nb::gil_scoped_release>(),
          "The machine's multiply-add peak, in floating-point operations a second.");
    m.def("read_bandwidth", &read_bandwidth, nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>(),
          "The machine's bandwidth of reading memory in order, in bytes a second.");
    m.def("set_isa", &set_isa, nb::arg("name"), "Use this instruction set from now on.");
}
