// The extension module: tensors in, and nothing that links to PyTorch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <stdexcept>

#include "kernels.h"
#include "large_pages.h"
#include "machine_limits.h"
#include "pass_rows.h"
#include "problem_of_tensors.h"
#include "thread_pool.h"
#include "tokens_of_tensors.h"
#include "torch_threads.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace limelight;

namespace {

// Runs a kernel on a problem or a step of a model, if there is one; returns whether there is.
template <class Task> bool run(const std::optional<Task>& task, void (*kernel)(const Task&, int), int threads) {
    if (!task) return false;
    nb::gil_scoped_release release;
    kernel(*task, threads);
    return true;
}

void bind_problem(nb::module_& m) {
    m.def("ordinary_sizes", &ordinary_sizes, "q"_a, "k"_a, "v"_a,
          nb::sig("def ordinary_sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int, int, int, "
                  "int, int] | None"),
          "(B, Hq, Hkv, N, M, D) of dense tensors with four axes on the CPU, q and k of one type of floats, that\n"
          "fit each other; None for others.");
    nb::class_<AllowedKeys>(m, "AllowedKeys",
                            "The keys that queries may attend to: those in `spans`, a contiguous int32 tensor (batch "
                            "or 1, N,\ncount, 2), and where `dense`, expanded to (B, Hq, N, M), is true.")
        .def(
            "__init__",
            [](AllowedKeys* self, const Tensor& spans, const Tensor& dense) {
                new (self) AllowedKeys{spans_of(spans), dense.grid()};
            },
            nb::kw_only(), "spans"_a = nb::none(), "dense"_a = nb::none());
    // Calls with more than 15 keywords take several times as long, so callers leave out what is absent.
    nb::class_<Problem>(m, "Problem",
                        "One attention call. It reads and writes its tensors where they lie and does not keep them.")
        .def(
            "__init__",
            [](Problem* self, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
               const Scaling& scaling, std::optional<AllowedKeys> mask, const Tensor& lse, const Tensor& normalisers,
               const Tensor& bias, const Tensor& slopes, const Tensor& offsets, const Tensor& sink, double dropout,
               uint64_t seed, const std::array<int64_t, 3>& place, const Tensor& queries, const Tensor& keys,
               const std::array<int64_t, 2>& whole) {
                Problem* p = new (self) Problem(of_tensors(q, k, v, out, scaling, mask));
                p->lse = lse.data(), p->normalisers = normalisers.data();
                p->bias = bias.grid();
                p->slopes = slopes.data(), p->offsets = offsets.data(), p->sink = sink.data();
                p->dropout = dropout, p->seed = seed;
                p->shift = place[0], p->first_query = place[1], p->first_key = place[2];
                p->places = {places_of(queries), places_of(keys), whole[0], whole[1]};
            },
            "q"_a, "k"_a, "v"_a, "out"_a, "scaling"_a, "mask"_a = nb::none(), nb::kw_only(), "lse"_a = nb::none(),
            "normalisers"_a = nb::none(), "bias"_a = nb::none(), "slopes"_a = nb::none(), "offsets"_a = nb::none(),
            "sink"_a = nb::none(), "dropout"_a = 0.0, "seed"_a = 0, "place"_a = std::array<int64_t, 3>{},
            "queries"_a = nb::none(), "keys"_a = nb::none(), "whole"_a = std::array<int64_t, 2>{},
            "`scaling` is (scale, softcap or 0, temperature), `place` (shift, first_query, first_key); `queries` and "
            "`keys`\nare int64 places in a matrix of the sizes `whole`. `bias` is expanded to (B, Hq, N, M).")
        .def(
            "read_int8",
            [](Problem& p, const Tensor& k_scale, const Tensor& v_scale) {
                set_scale(p.k, k_scale), set_scale(p.v, v_scale);
            },
            "k_scale"_a, "v_scale"_a, "Gives the rows of bytes of k and v their factors (B, Hkv, M).");
}

void bind_gradients(nb::module_& m) {
    nb::class_<Gradients>(m, "Gradients",
                          "Tensors for the gradients of a problem, in the compute type and zero at first.")
        .def(
            "__init__",
            [](Gradients* self, const Tensor& dout, const Tensor& dq, const Tensor& dk, const Tensor& dv,
               const Tensor& dlse, const Tensor& bias, const Tensor& offsets, const Tensor& slopes,
               const Tensor& d_temperature, const Tensor& delta, const std::vector<Request>& terms, bool part,
               const Tensor& sums) {
                Gradients* g = new (self) Gradients;
                g->dout = dout.rows(), g->dq = dq.rows(), g->dk = dk.rows(), g->dv = dv.rows();
                g->dlse = dlse.data();
                g->bias = bias.grid();
                g->offsets = offsets.data(), g->slopes = slopes.data();
                g->d_temperature = d_temperature.data(), g->delta = delta.data();
                g->terms = terms;
                g->part = part;
                g->sums = sums.data();
            },
            "dout"_a, "dq"_a, "dk"_a, "dv"_a, nb::kw_only(), "dlse"_a = nb::none(), "bias"_a = nb::none(),
            "offsets"_a = nb::none(), "slopes"_a = nb::none(), "d_temperature"_a = nb::none(), "delta"_a = nb::none(),
            "terms"_a = std::vector<Request>{}, "part"_a = false, "sums"_a = nb::none(),
            "`terms` are statistics whose outputs hold their gradients; the rows of a `part` have keys elsewhere, "
            "too;\nwith `sums`, only Σ P · term of each row is computed.");
}

void bind_running_rows(nb::module_& m) {
    nb::class_<RunningRows>(m, "RunningRows",
                            "The running softmax of a problem's rows, in the compute type: m −∞, l and o 0 at first.")
        .def(
            "__init__",
            [](RunningRows* self, const Tensor& o, const Tensor& m, const Tensor& l) {
                if (!m.has_contiguous_rows()) throw std::invalid_argument("RunningRows: rows are not contiguous");
                new (self) RunningRows{o.rows(), m.data(), l.data(), m.stride(0), m.stride(1)};
            },
            nb::kw_only(), "o"_a, "m"_a, "l"_a, "m and l have the same strides.");
}

void bind_statistics(nb::module_& m) {
    nb::class_<Request>(m, "Request", "One statistic: its file in cpp/statistics says what outputs and numbers hold.")
        .def(
            "__init__",
            [](Request* self, const std::string& name, const std::vector<Tensor>& outputs,
               const std::vector<double>& numbers, std::optional<AllowedKeys> mask, const Tensor& rows) {
                Request* r = new (self) Request;
                r->name = name;
                for (const Tensor& x : outputs) r->outputs.push_back(x.data());
                r->numbers = numbers;
                if (mask) r->spans = mask->spans, r->mask = mask->dense;
                r->rows = rows.rows();
            },
            nb::kw_only(), "name"_a, "outputs"_a, "numbers"_a = std::vector<double>{}, "mask"_a = nb::none(),
            "rows"_a = nb::none());
}

// Records (B, Hq, N, bytes) of rows.
RunningRecords records_of(const Tensor& x) { return {x.data(), x.stride(0), x.stride(1), x.stride(2)}; }

void bind_calls(nb::module_& m) {
    m.def("plain_problem", &plain_problem, "q"_a, "k"_a, "v"_a, "out"_a, "scaling"_a, "mask"_a.none(),
          "normalisers"_a.none(), "A problem without other options; None where a tensor cannot be used where it lies.");
    m.def(
        "attention",
        [](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Scaling& scaling,
           const std::optional<AllowedKeys>& mask, const Tensor& normalisers, int threads) {
            return run(plain_problem(q, k, v, out, scaling, mask, normalisers), kernels().forward, threads);
        },
        "q"_a, "k"_a, "v"_a, "out"_a, "scaling"_a, "mask"_a.none(), "normalisers"_a.none(), "threads"_a,
        "`forward` of a `plain_problem`, in one call; False where there is none, and nothing is done.");
    m.def(
        "quick_attention",
        [](const Candidate& q, const Candidate& k, const Candidate& v, const Tensor& out, std::optional<double> scale,
           bool grad,
           int threads) { return run(quick_problem(q, k, v, out, scale, grad), kernels().forward, threads); },
        "q"_a, "k"_a, "v"_a, "out"_a, "scale"_a.none(), "grad"_a, "threads"_a,
        "The same without mask and normalisers, for tensors that nobody has checked; False where one is not plain, does"
        "\nnot fit, or requires a gradient where these are recorded (`grad`).");
    m.def(
        "attention_int8",
        [](const Tensor& q, const Tensor& k, const Tensor& k_scale, const Tensor& v, const Tensor& v_scale,
           const Tensor& out, std::optional<double> scale, int threads) {
            return run(plain_int8_problem(q, k, k_scale, v, v_scale, out, scale), kernels().forward, threads);
        },
        "q"_a, "k"_a, "k_scale"_a, "v"_a, "v_scale"_a, "out"_a, "scale"_a.none(), "threads"_a,
        "The same with keys and values of an 8-bit cache; False where a tensor does not fit, and nothing is done.");
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
        [](const Problem& p, const std::vector<Request>& requests, bool known, const std::array<int64_t, 4>& crop,
           int threads) {
            Statistics s{requests, known, {crop[0], crop[1], crop[2], crop[3]}};
            nb::gil_scoped_release release;
            kernels().statistics(p, s, threads);
        },
        "problem"_a, "requests"_a, nb::kw_only(), "known"_a, "crop"_a, "threads"_a,
        "Compute statistics of the weights. `lse` and `normalisers` are read where `known`, otherwise written. "
        "`crop` is\n"
        "(query_begin, query_end, key_begin, key_end), the part that column statistics look at.");
    m.def(
        "record_bytes",
        [](const Problem& p, const std::vector<Request>& requests) { return kernels().record_bytes(p, requests); },
        "problem"_a, "requests"_a, "The bytes of one row's record of statistics of rows.");
    m.def(
        "accumulate_statistics",
        [](const Problem& p, const std::vector<Request>& requests, const Tensor& records, int threads) {
            const RunningRecords running = records_of(records);
            nb::gil_scoped_release release;
            kernels().accumulate_statistics(p, requests, running, threads);
        },
        "problem"_a, "requests"_a, nb::kw_only(), "records"_a, "threads"_a,
        "Add the keys of a problem to the records (B, Hq, N, bytes) of its rows, which are zeros at first.");
    m.def(
        "finish_statistics",
        [](const Problem& p, const std::vector<Request>& requests, const Tensor& records) {
            const RunningRecords running = records_of(records);
            nb::gil_scoped_release release;
            kernels().finish_statistics(p, requests, running);
        },
        "problem"_a, "requests"_a, nb::kw_only(), "records"_a,
        "Write the statistics, and `lse` and `normalisers`, of rows from their records.");
}

void bind_tokens(nb::module_& m) {
    m.def(
        "linear",
        [](const Candidate& x, const std::vector<std::pair<Candidate, Candidate>>& layers,
           const std::vector<Tensor>& outs, const std::optional<Norm>& norm, const Candidate& residual, bool grad,
           int threads) { return run(linear_of(x, layers, outs, norm, residual, grad), run_linear, threads); },
        "x"_a, "layers"_a, "outs"_a, "norm"_a.none(), "residual"_a.none(), "grad"_a, "threads"_a,
        "Write norm(x) weightᵀ + bias + residual for each of up to 3 layers (weight, bias or None), for up to 8 rows\n"
        "of x; `norm` is (weight, eps) of rms_norm. False where a tensor does not fit, or requires a gradient where\n"
        "these are recorded (`grad`), and nothing is done.");
    m.def(
        "rms_norm",
        [](const Candidate& x, const Candidate& weight, const Tensor& out, double eps, bool grad, int threads) {
            return run(rms_norm_of(x, weight, out.data(), eps, grad), kernels().rms_norm, threads);
        },
        "x"_a, "weight"_a.none(), "out"_a, "eps"_a, "grad"_a, "threads"_a,
        "Write x / √(mean(x²) + eps) ∘ weight for contiguous rows of x; False as in `linear`.");
    m.def(
        "rotate",
        [](const std::vector<std::pair<Candidate, Candidate>>& tensors, const Angles& angles, bool grad, int threads) {
            return run(rotation_of(tensors, angles, grad), kernels().rotate, threads);
        },
        "tensors"_a, "angles"_a, "grad"_a, "threads"_a,
        "Rotate pairs of features of one or two tensors (x, out), x (B, heads, N, D), by angles (cos, sin, width,\n"
        "interleaved), cos (N, width / 2) or (B, 1, N, width / 2); False as in `linear`.");
    m.def(
        "attention_with_cache",
        [](const std::array<Candidate, 3>& projected, const std::array<Candidate, 2>& cache, int64_t length,
           const std::optional<Angles>& angles, double scale, const Tensor& out, bool grad, int threads) {
            return run(cache_step_of(projected, cache, length, angles, scale, out, grad), run_cache_step, threads);
        },
        "projected"_a, "cache"_a, "length"_a, "angles"_a.none(), "scale"_a, "out"_a, "grad"_a, "threads"_a,
        "Rotate one token, (q, k, v) as projected, write its key and value to row `length` of the cache (keys, values),"
        "\nand attend to all rows up to it; False as in `linear`.");
}

void bind_pass_rows(nb::module_& m) {
    m.def(
        "take_rows",
        [](const Tensor& x, const Tensor& places, const Tensor& out, int threads) {
            const TakenRows t{x.size(0), x.size(1), x.size(3), x.rows(), places_of(places), places.size(0), out.data()};
            nb::gil_scoped_release release;
            take_rows(t, threads);
        },
        "x"_a, "places"_a, "out"_a, "threads"_a, "Copy the rows `places` of x to `out`, which is contiguous.");
    m.def(
        "merge_rows",
        [](const Tensor& out, const Tensor& lse, const Tensor& other, const Tensor& other_lse, const Tensor& places,
           int threads) {
            const MergedRows r{out.size(0), out.size(1),      out.size(3), out.rows(),    other.rows(),
                               lse.data(),  other_lse.data(), out.size(2), other.size(2), places_of(places)};
            nb::gil_scoped_release release;
            merge_rows(r, threads);
        },
        "out"_a, "lse"_a, "other"_a, "other_lse"_a, "places"_a.none(), "threads"_a,
        "Join the softmax of some rows over other keys to that of all rows, in place.");
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
    m.doc() = "Attention kernels; limelight.backends.native is their only caller.";
    bind_problem(m);
    bind_running_rows(m);
    bind_statistics(m);
    bind_gradients(m);
    bind_calls(m);
    bind_tokens(m);
    bind_pass_rows(m);
    m.def(
        "move_to_large_pages", [](const Tensor& x) { move_to_large_pages(x.data(), x.bytes()); }, "x"_a,
        "Move a contiguous tensor that is read again and again to large pages, where the system can.");
    m.def("isa", [] { return kernels().name; }, "The instruction set in use.");
    m.def("available_isas", &available_isas, "The instruction sets that this machine has, the best last.");
    m.def("set_isa", &set_isa, "name"_a, "Use this instruction set from now on.");
    m.def("force_amd_family", &force_amd_family, "family"_a,
          "Read caches as is best for AMD's processors of this family, or for others (0); -1 goes back to the truth.");
    m.def("peak_flops", &peak_flops, "threads"_a, "wide"_a = false, nb::call_guard<nb::gil_scoped_release>(),
          "Measure the multiply-add peak of the machine, in floating-point operations a second.");
    m.def("multiply_adds", &multiply_adds, "threads"_a, "flops"_a, "wide"_a = false,
          nb::call_guard<nb::gil_scoped_release>(),
          "Do so many floating-point operations in multiply-adds that wait for nothing.");
    m.def("read_bandwidth", &read_bandwidth, "threads"_a, "bytes"_a = int64_t(256) << 20,
          nb::call_guard<nb::gil_scoped_release>(),
          "Measure the bandwidth of reading so many bytes of memory in order, again and again, in bytes a second.");
    m.def(
        "read_once",
        [](int threads, const Tensor& x) {
            nb::gil_scoped_release release;
            read_once(threads, x.data(), x.bytes());
        },
        "threads"_a, "x"_a, "Read a contiguous tensor once, in order.");
    m.def(
        "shares_threads", [] { return torch_threads() != nullptr; },
        "True where the kernels run on PyTorch's own threads; else on threads of their own.");
}
