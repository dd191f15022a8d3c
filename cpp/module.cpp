// The extension module: addresses and strides in, nothing of PyTorch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "kernels.h"
#include "large_pages.h"
#include "machine_limits.h"
#include "pass_rows.h"
#include "thread_pool.h"
#include "torch_threads.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace limelight;

namespace {

using Address = int64_t;                 // 0: absent
using Strides = std::array<int64_t, 4>;  // in elements

char* pointer(Address p) { return reinterpret_cast<char*>(p); }

Type compute_type(const Problem& p) { return p.wide() ? Type::f64 : Type::f32; }

Rows rows(Address data, int type, const Strides& s) { return {pointer(data), Type(type), s[0], s[1], s[2]}; }

// The keys that queries may attend to: those in a query's spans and where the dense mask is true.
struct AllowedKeys {
    Spans spans;
    Grid dense;
};

void bind_problem(nb::module_& m) {
    nb::class_<Spans>(m, "Spans", "Spans of keys for each query, int32 (batch or 1, N, count, 2).")
        .def(
            "__init__",
            [](Spans* self, Address data, int64_t batch_stride, int64_t count) {
                new (self) Spans{reinterpret_cast<const int32_t*>(data), batch_stride, count};
            },
            nb::kw_only(), "data"_a, "batch_stride"_a, "count"_a);
    nb::class_<Grid>(m, "Grid", "A (batch, head, query, key) tensor; broadcast axes have stride 0.")
        .def(
            "__init__",
            [](Grid* self, Address data, int type, const Strides& strides) {
                new (self) Grid{pointer(data), Type(type), strides[0], strides[1], strides[2], strides[3]};
            },
            nb::kw_only(), "data"_a, "type"_a, "strides"_a);
    nb::class_<AllowedKeys>(m, "AllowedKeys",
                            "The keys that queries may attend to: those in spans and where `dense` is true.")
        .def(
            "__init__",
            [](AllowedKeys* self, std::optional<Spans> spans, std::optional<Grid> dense) {
                new (self) AllowedKeys{spans ? *spans : Spans{}, dense ? *dense : Grid{}};
            },
            nb::kw_only(), "spans"_a = nb::none(), "dense"_a = nb::none());
    // Calls with more than 15 keywords take several times as long, so numbers that belong together are one argument.
    nb::class_<Problem>(m, "Problem", "One attention call. Strides are in elements; address 0 and None mean absent.")
        .def(
            "__init__",
            [](Problem* self, const std::array<int64_t, 6>& sizes, int64_t value_width, int type, int value_type,
               Address q, const Strides& q_strides, Address k, const Strides& k_strides, Address v,
               const Strides& v_strides, Address out, const Strides& out_strides, const std::array<double, 3>& scaling,
               std::optional<AllowedKeys> mask, Address lse, Address normalisers, std::optional<Grid> bias,
               Address slopes, Address offsets, Address sink, double dropout, uint64_t seed,
               const std::array<int64_t, 3>& place, const std::array<int64_t, 4>& places) {
                Problem* p = new (self) Problem;
                p->B = sizes[0], p->Hq = sizes[1], p->Hkv = sizes[2], p->N = sizes[3], p->M = sizes[4], p->D = sizes[5];
                p->Dv = value_width;
                p->q = rows(q, type, q_strides), p->k = rows(k, type, k_strides), p->v = rows(v, value_type, v_strides);
                p->out = rows(out, value_type, out_strides);
                p->lse = pointer(lse), p->normalisers = pointer(normalisers);
                if (mask) p->spans = mask->spans, p->mask = mask->dense;
                if (bias) p->bias = *bias;
                p->slopes = pointer(slopes), p->offsets = pointer(offsets), p->sink = pointer(sink);
                p->scale = scaling[0], p->softcap = scaling[1], p->temperature = scaling[2];
                p->dropout = dropout, p->seed = seed;
                p->shift = place[0], p->first_query = place[1], p->first_key = place[2];
                p->places = {reinterpret_cast<const int64_t*>(places[0]), reinterpret_cast<const int64_t*>(places[1]),
                             places[2], places[3]};
            },
            nb::kw_only(), "sizes"_a, "value_width"_a, "type"_a, "value_type"_a, "q"_a, "q_strides"_a, "k"_a,
            "k_strides"_a, "v"_a, "v_strides"_a, "out"_a, "out_strides"_a, "scaling"_a, "mask"_a = nb::none(),
            "lse"_a = 0, "normalisers"_a = 0, "bias"_a = nb::none(), "slopes"_a = 0, "offsets"_a = 0, "sink"_a = 0,
            "dropout"_a = 0.0, "seed"_a = 0, "place"_a = std::array<int64_t, 3>{},
            "places"_a = std::array<int64_t, 4>{},
            "`sizes` are (B, Hq, Hkv, N, M, D), `scaling` (scale, softcap, temperature), `place` (shift, first_query,\n"
            "first_key) and `places` (addresses of the places of queries and keys in a matrix, its N, its M).")
        .def(
            "read_int8",
            [](Problem& p, Address k_scale, const std::array<int64_t, 2>& k_scale_strides, Address v_scale,
               const std::array<int64_t, 2>& v_scale_strides) {
                const auto set = [](Rows& x, Address scale, const std::array<int64_t, 2>& strides) {
                    x.type = Type::i8;
                    x.scale = reinterpret_cast<const float*>(scale);
                    x.scale_batch = strides[0], x.scale_head = strides[1];
                };
                set(p.k, k_scale, k_scale_strides);
                set(p.v, v_scale, v_scale_strides);
            },
            nb::kw_only(), "k_scale"_a, "k_scale_strides"_a, "v_scale"_a, "v_scale_strides"_a,
            "Reads k and v as bytes with a float factor for each row; its strides are those of batch and head.");
}

void bind_gradients(nb::module_& m) {
    nb::class_<Gradients>(m, "Gradients",
                          "Memory for the gradients of a problem, in the compute type and zero at first.")
        .def(
            "__init__",
            [](Gradients* self, const Problem& p, int dout_type, Address dout, const Strides& dout_strides, Address dq,
               const Strides& dq_strides, Address dk, const Strides& dk_strides, Address dv, const Strides& dv_strides,
               Address dlse, std::optional<Grid> bias, Address offsets, Address slopes, Address d_temperature,
               Address delta, const std::vector<Request>& terms, bool part, Address sums) {
                Gradients* g = new (self) Gradients;
                const int type = int(compute_type(p));
                g->dout = rows(dout, dout_type, dout_strides);
                g->dlse = pointer(dlse);
                g->dq = rows(dq, type, dq_strides), g->dk = rows(dk, type, dk_strides),
                g->dv = rows(dv, type, dv_strides);
                if (bias) g->bias = *bias;
                g->offsets = pointer(offsets), g->slopes = pointer(slopes);
                g->d_temperature = pointer(d_temperature), g->delta = pointer(delta);
                g->terms = terms;
                g->part = part;
                g->sums = pointer(sums);
            },
            "problem"_a, nb::kw_only(), "dout_type"_a, "dout"_a, "dout_strides"_a, "dq"_a, "dq_strides"_a, "dk"_a,
            "dk_strides"_a, "dv"_a, "dv_strides"_a, "dlse"_a = 0, "bias"_a = nb::none(), "offsets"_a = 0,
            "slopes"_a = 0, "d_temperature"_a = 0, "delta"_a = 0, "terms"_a = std::vector<Request>{}, "part"_a = false,
            "sums"_a = 0,
            "`terms` are statistics whose outputs hold their gradients; the rows of a `part` have keys elsewhere, "
            "too;\nwith `sums`, only Σ P · term of each row is computed.");
}

void bind_running_rows(nb::module_& m) {
    nb::class_<RunningRows>(m, "RunningRows",
                            "The running softmax of a problem's rows, in the compute type: m −∞, l and o 0 at first.")
        .def(
            "__init__",
            [](RunningRows* self, const Problem& p, Address o, const Strides& o_strides, Address m, Address l,
               const std::array<int64_t, 3>& strides) {
                if (strides[2] != 1) throw std::invalid_argument("RunningRows: rows are not contiguous");
                new (self) RunningRows{rows(o, int(compute_type(p)), o_strides), pointer(m), pointer(l), strides[0],
                                       strides[1]};
            },
            "problem"_a, nb::kw_only(), "o"_a, "o_strides"_a, "m"_a, "l"_a, "strides"_a,
            "`strides` are those of m and l.");
}

void bind_statistics(nb::module_& m) {
    nb::class_<Request>(m, "Request", "One statistic: its file in cpp/statistics says what outputs and numbers hold.")
        .def(
            "__init__",
            [](Request* self, const std::string& name, const std::vector<Address>& outputs,
               const std::vector<double>& numbers, std::optional<AllowedKeys> mask, Address rows_data, int rows_type,
               const Strides& rows_strides) {
                Request* r = new (self) Request;
                r->name = name;
                for (const Address a : outputs) r->outputs.push_back(pointer(a));
                r->numbers = numbers;
                if (mask) r->spans = mask->spans, r->mask = mask->dense;
                r->rows = rows(rows_data, rows_type, rows_strides);
            },
            nb::kw_only(), "name"_a, "outputs"_a, "numbers"_a = std::vector<double>{}, "mask"_a = nb::none(),
            "rows"_a = 0, "rows_type"_a = 0, "rows_strides"_a = Strides{});
}

void bind_calls(nb::module_& m) {
    m.def(
        "forward",
        [](const Problem& p, int threads) {
            nb::gil_scoped_release release;
            kernels().forward(p, threads);
        },
        "problem"_a, "threads"_a,
        "Write softmax(logits / temperature) v to `out`, and `lse` and `normalisers` where given.");
    m.def(
        "accumulate",
        [](const Problem& p, const RunningRows& rows, int threads) {
            nb::gil_scoped_release release;
            kernels().accumulate(p, rows, threads);
        },
        "problem"_a, "rows"_a, "threads"_a,
        "Add the keys of a problem to the running softmax of its rows; `out`, `lse`, `normalisers` and `sink` have no "
        "part.");
    m.def(
        "cut",
        [](const Problem& p) {
            const Cut c = kernels().cut(p);
            return std::array<int64_t, 4>{c.tasks, c.rows, c.keys, c.chunks};
        },
        "problem"_a, "The work of `forward` as it is cut for threads: (tasks, rows, keys, chunks).");
    m.def(
        "backward",
        [](const Problem& p, const Gradients& g, int threads) {
            nb::gil_scoped_release release;
            kernels().backward(p, g, threads);
        },
        "problem"_a, "gradients"_a, "threads"_a,
        "Add the gradients of a problem whose `out` and `normalisers` are known.");
    m.def(
        "statistics",
        [](const Problem& p, const std::vector<Request>& requests, bool known, const std::array<int64_t, 4>& window,
           int threads) {
            Statistics s{requests, known, {window[0], window[1], window[2], window[3]}};
            nb::gil_scoped_release release;
            kernels().statistics(p, s, threads);
        },
        "problem"_a, "requests"_a, nb::kw_only(), "known"_a, "window"_a, "threads"_a,
        "Compute statistics of the weights. `lse` and `normalisers` are read where `known`, otherwise written. "
        "`window` is\n"
        "(query_begin, query_end, key_begin, key_end), the part that column statistics look at.");
    m.def(
        "record_bytes",
        [](const Problem& p, const std::vector<Request>& requests) { return kernels().record_bytes(p, requests); },
        "problem"_a, "requests"_a, "The bytes of one row's record of statistics of rows.");
    m.def(
        "accumulate_statistics",
        [](const Problem& p, const std::vector<Request>& requests, Address records,
           const std::array<int64_t, 3>& strides, int threads) {
            const RunningRecords running{pointer(records), strides[0], strides[1], strides[2]};
            nb::gil_scoped_release release;
            kernels().accumulate_statistics(p, requests, running, threads);
        },
        "problem"_a, "requests"_a, nb::kw_only(), "records"_a, "strides"_a, "threads"_a,
        "Add the keys of a problem to the records (B, Hq, N, bytes) of its rows, which are zeros at first.");
    m.def(
        "finish_statistics",
        [](const Problem& p, const std::vector<Request>& requests, Address records,
           const std::array<int64_t, 3>& strides) {
            const RunningRecords running{pointer(records), strides[0], strides[1], strides[2]};
            nb::gil_scoped_release release;
            kernels().finish_statistics(p, requests, running);
        },
        "problem"_a, "requests"_a, nb::kw_only(), "records"_a, "strides"_a,
        "Write the statistics, and `lse` and `normalisers`, of rows from their records.");
    m.def(
        "linear",
        [](const std::array<int64_t, 3>& sizes, Address x, const std::vector<std::array<int64_t, 5>>& parts,
           int threads) {
            Linear l{sizes[0], sizes[1], Type(sizes[2]), pointer(x), 0, {}};
            if (l.rows > kLinearRows || parts.size() > kLinearParts) throw std::invalid_argument("linear: too large");
            for (const auto& p : parts) l.parts[l.count++] = {pointer(p[0]), p[1], p[2], pointer(p[3]), pointer(p[4])};
            nb::gil_scoped_release release;
            kernels().linear(l, threads);
        },
        "sizes"_a, "x"_a, "parts"_a, "threads"_a,
        "Write x weightᵀ + bias for each of up to 3 matrices, for up to 8 contiguous rows of x.\n"
        "`sizes` are (rows, D, type), and a part is (weight, N, stride, bias, out).");
}

void bind_tokens(nb::module_& m) {
    m.def(
        "rms_norm",
        [](const std::array<int64_t, 3>& sizes, Address x, Address weight, Address out, double eps, int threads) {
            const RmsNorm n{sizes[0], sizes[1], Type(sizes[2]), pointer(x), pointer(weight), pointer(out), eps};
            nb::gil_scoped_release release;
            kernels().rms_norm(n, threads);
        },
        "sizes"_a, "x"_a, "weight"_a, "out"_a, "eps"_a, "threads"_a,
        "Write x / √(mean(x²) + eps) ∘ weight; `sizes` are (rows, D, type).");
    m.def(
        "rotate",
        [](const std::array<int64_t, 6>& sizes, const std::array<int64_t, 3>& angles,
           const std::vector<std::tuple<int64_t, Address, Strides, Address, Strides>>& parts, int threads) {
            const Type type = Type(sizes[4]);
            Rotation r{sizes[0],           sizes[1],           sizes[2],  sizes[3], type, sizes[5] != 0,
                       pointer(angles[0]), pointer(angles[1]), angles[2], 0,        {}};
            if (parts.size() > 2) throw std::invalid_argument("rotate: more than two tensors");
            for (const auto& [heads, x, x_strides, out, out_strides] : parts)
                r.parts[r.count++] = {heads, rows(x, int(type), x_strides), rows(out, int(type), out_strides)};
            nb::gil_scoped_release release;
            kernels().rotate(r, threads);
        },
        "sizes"_a, "angles"_a, "parts"_a, "threads"_a,
        "Rotate pairs of features. `sizes` are (B, N, D, width, type, interleaved), `angles` the addresses of cosines "
        "and "
        "sines\nand their batch stride, and a part is (heads, x, strides, out, strides).");
}

void bind_pass_rows(nb::module_& m) {
    m.def(
        "take_rows",
        [](const std::array<int64_t, 5>& sizes, Address x, const Strides& strides, Address places, Address out,
           int threads) {
            const TakenRows t{sizes[0],
                              sizes[1],
                              sizes[2],
                              rows(x, int(sizes[4]), strides),
                              reinterpret_cast<const int64_t*>(places),
                              sizes[3],
                              pointer(out)};
            nb::gil_scoped_release release;
            take_rows(t, threads);
        },
        nb::kw_only(), "sizes"_a, "x"_a, "strides"_a, "places"_a, "out"_a, "threads"_a,
        "Copy some rows of x to contiguous memory; `sizes` are (B, heads, width, places, type).");
    m.def(
        "merge_rows",
        [](const std::array<int64_t, 6>& sizes, Address out, const Strides& out_strides, Address lse, Address other,
           const Strides& other_strides, Address other_lse, Address places, int threads) {
            const int type = int(sizes[5]);
            const MergedRows r{sizes[0],
                               sizes[1],
                               sizes[2],
                               rows(out, type, out_strides),
                               rows(other, type, other_strides),
                               pointer(lse),
                               pointer(other_lse),
                               sizes[3],
                               sizes[4],
                               reinterpret_cast<const int64_t*>(places)};
            nb::gil_scoped_release release;
            merge_rows(r, threads);
        },
        nb::kw_only(), "sizes"_a, "out"_a, "out_strides"_a, "lse"_a, "other"_a, "other_strides"_a, "other_lse"_a,
        "places"_a, "threads"_a,
        "Join the softmax of some rows over other keys to that of all rows, in place; `sizes` are (B, heads, width,\n"
        "rows, other rows, type).");
}

// Runs the handlers of signals that have arrived, and throws what they raise: Ctrl-C does not wait for the end of a call.
// The thread that calls it has released the GIL.
void check_signals() {
    // False from the beginning of finalisation on; Py_IsFinalizing is not part of the stable ABI of Python 3.12.
    if (!Py_IsInitialized()) return;  // the GIL is not to be had any more
    const nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals()) throw nb::python_error();
}

}  // namespace

NB_MODULE(_native, m) {
    set_interrupt_check(check_signals);
    nb::set_leak_warnings(false);  // lowered masks are cached, with their Spans, until the process ends
    m.doc() = "Attention kernels on plain addresses; limelight.backends.native is their only caller.";
    bind_problem(m);
    bind_running_rows(m);
    bind_statistics(m);
    bind_gradients(m);
    bind_calls(m);
    bind_tokens(m);
    bind_pass_rows(m);
    m.def(
        "move_to_large_pages", [](Address data, int64_t bytes) { move_to_large_pages(pointer(data), bytes); }, "data"_a,
        "bytes"_a, "Move memory that is read again and again to large pages, where the system can.");
    m.def("isa", [] { return kernels().name; }, "The instruction set in use.");
    m.def("available_isas", &available_isas, "The instruction sets that this machine has, the best last.");
    m.def("set_isa", &set_isa, "name"_a, "Use this instruction set from now on.");
    m.def("peak_flops", &peak_flops, "threads"_a, "wide"_a = false, nb::call_guard<nb::gil_scoped_release>(),
          "Measure the multiply-add peak of the machine, in floating-point operations a second.");
    m.def("read_bandwidth", &read_bandwidth, "threads"_a, "bytes"_a = int64_t(256) << 20,
          nb::call_guard<nb::gil_scoped_release>(),
          "Measure the bandwidth of reading so many bytes of memory in order, again and again, in bytes a second.");
    m.def(
        "read_once", [](int threads, Address data, int64_t bytes) { read_once(threads, pointer(data), bytes); },
        "threads"_a, "data"_a, "bytes"_a, nb::call_guard<nb::gil_scoped_release>(), "Read memory once, in order.");
    m.def(
        "shares_threads", [] { return torch_threads() != nullptr; },
        "True where the kernels run on PyTorch's own threads; else on threads of their own.");
}
