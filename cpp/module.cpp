// The extension module: addresses and strides in, nothing of PyTorch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "forward.h"

namespace nb = nanobind;
using namespace limelight;

namespace {

char* address(uintptr_t p) { return reinterpret_cast<char*>(p); }

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Attention kernels on plain addresses; limelight.backends.native is their only caller.";

    nb::class_<Rows>(m, "Rows", "A (batch, head, row, width) tensor whose last axis is contiguous.")
        .def("__init__",
             [](Rows* self, uintptr_t data, int type, int64_t batch, int64_t head, int64_t row) {
                 new (self) Rows{address(data), Type(type), batch, head, row};
             },
             nb::arg("data"), nb::arg("type"), nb::arg("batch"), nb::arg("head"), nb::arg("row"));

    nb::class_<Grid>(m, "Grid", "A (batch, head, query, key) tensor, broadcast where a stride is 0.")
        .def("__init__",
             [](Grid* self, uintptr_t data, int type, int64_t batch, int64_t head, int64_t row, int64_t col) {
                 new (self) Grid{address(data), Type(type), batch, head, row, col};
             },
             nb::arg("data"), nb::arg("type"), nb::arg("batch"), nb::arg("head"), nb::arg("row"), nb::arg("col"));

    nb::class_<Spans>(m, "Spans", "(batch or 1, N, count, 2) sorted half-open spans of keys.")
        .def("__init__",
             [](Spans* self, uintptr_t data, int64_t batch, int64_t count) {
                 new (self) Spans{reinterpret_cast<const int32_t*>(data), batch, count};
             },
             nb::arg("data"), nb::arg("batch"), nb::arg("count"));

    m.def(
        "forward",
        [](std::array<int64_t, 7> sizes, const Rows& q, const Rows& k, const Rows& v, const Rows& out, uintptr_t lse,
           const Spans& spans, const Grid& mask, const Grid& bias, uintptr_t slopes, uintptr_t offsets,
           int64_t offsets_head, uintptr_t sink, double scale, double softcap, double temperature, int threads) {
            const auto [B, Hq, Hkv, N, M, D, Dv] = sizes;
            const Problem p{B,     Hq,   Hkv,  N,    M,    D,   Dv,
                            q,     k,    v,    out,  address(lse), spans, mask, bias,
                            address(slopes), address(offsets), offsets_head, address(sink), scale, softcap, temperature};
            nb::gil_scoped_release release;
            forward(p, threads);
        },
        nb::arg("sizes"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse"), nb::arg("spans"),
        nb::arg("mask"), nb::arg("bias"), nb::arg("slopes"), nb::arg("offsets"), nb::arg("offsets_head"),
        nb::arg("sink"), nb::arg("scale"), nb::arg("softcap"), nb::arg("temperature"), nb::arg("threads"),
        "Writes softmax(logits / temperature) @ v to `out`, and the log-sum-exp of each row to `lse` unless 0.\n"
        "`sizes` is (B, Hq, Hkv, N, M, D, Dv); an address of 0 means absent.");

    m.def("isa", &isa, "The instruction set in use.");
    m.def("available_isas", &available_isas, "The instruction sets that this machine has, the best last.");
    m.def("set_isa", &set_isa, nb::arg("name"), "Use this instruction set from now on.");
}
