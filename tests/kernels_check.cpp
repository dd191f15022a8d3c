// Compares the kernels with plain loops in double: forward, decode, gradients, rows, columns, linear layers, tokens.
//
// Needs neither Python nor PyTorch, so it runs where they do not: cross-compiled for another machine, under an
// emulator. Prints a line for each check and ends with 1 if one fails.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../cpp/kernels.h"

using namespace limelight;

namespace {

int failures = 0;

using Numbers = std::vector<double>;

void check(const std::string& what, const Numbers& got, const Numbers& want, double tolerance) {
    double worst = 0;
    bool same = got.size() == want.size();
    for (size_t i = 0; same && i < got.size(); ++i) {
        const double error = std::fabs(got[i] - want[i]) / (1 + std::fabs(want[i]));
        worst = error <= worst ? worst : error;  // NaN becomes the worst
        if (!(error <= tolerance)) same = false;
    }
    std::printf("%s %s: error %.2e, allowed %.2e\n", same ? "ok    " : "FAILED", what.c_str(), worst, tolerance);
    failures += !same;
}

// A tensor in one of the types of the kernels, and its exact values as doubles.
struct Tensor {
    Type type;
    std::vector<char> memory;
    Numbers values;

    Tensor(Type type, size_t n) : type(type), memory(n * size_of(type)), values(n) {}

    void read() {
        for (size_t i = 0; i < values.size(); ++i) values[i] = at(i);
    }

    double at(size_t i) const {
        if (type == Type::f64) return reinterpret_cast<const double*>(memory.data())[i];
        if (type == Type::f32) return reinterpret_cast<const float*>(memory.data())[i];
        const uint16_t bits = reinterpret_cast<const uint16_t*>(memory.data())[i];
        if (type == Type::bf16) {
            const uint32_t wide = uint32_t(bits) << 16;
            float x;
            std::memcpy(&x, &wide, sizeof x);
            return x;
        }
        const int exponent = bits >> 10 & 31, fraction = bits & 1023;
        const double magnitude = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
        return bits >> 15 ? -magnitude : magnitude;
    }

    void set(size_t i, double x) {
        if (type == Type::f64) reinterpret_cast<double*>(memory.data())[i] = x;
        else if (type == Type::f32) reinterpret_cast<float*>(memory.data())[i] = float(x);
        else if (type == Type::bf16) {
            const float y = float(x);
            uint32_t bits;
            std::memcpy(&bits, &y, sizeof bits);
            reinterpret_cast<uint16_t*>(memory.data())[i] = uint16_t(bits >> 16);
        } else {  // cut off, which is a number of the type as well
            int exponent = 0;
            const double fraction = std::frexp(std::fabs(x), &exponent);
            const int shifted = exponent + 14;
            const uint16_t bits = shifted < 1 ? 0 : uint16_t(shifted << 10 | (int(fraction * 2048) & 1023));
            reinterpret_cast<uint16_t*>(memory.data())[i] = uint16_t(bits | (x < 0 ? 0x8000 : 0));
        }
    }
};

std::mt19937 generator(7);

Tensor random(Type type, size_t n) {
    std::normal_distribution<double> normal;
    Tensor t(type, n);
    for (size_t i = 0; i < n; ++i) t.set(i, normal(generator));
    t.read();
    return t;
}

double rounding(Type type) {
    return type == Type::f64 ? 0x1p-52 : type == Type::f32 ? 0x1p-23 : type == Type::bf16 ? 0x1p-8 : 0x1p-11;
}

struct Shape {
    int64_t B, Hq, Hkv, N, M, D, Dv;
    bool causal;
};

// Everything that a problem needs, with its results in double by plain loops.
struct Attention {
    Shape s;
    Type type, compute;
    Tensor q, k, v, dout, out, lse, normalisers;
    std::vector<int32_t> spans;
    Numbers weights, y, entropy, received, dq, dk, dv;

    Attention(const Shape& s, Type type)
        : s(s),
          type(type),
          compute(type == Type::f64 ? Type::f64 : Type::f32),
          q(random(type, s.B * s.Hq * s.N * s.D)),
          k(random(type, s.B * s.Hkv * s.M * s.D)),
          v(random(type, s.B * s.Hkv * s.M * s.Dv)),
          dout(random(type, s.B * s.Hq * s.N * s.Dv)),
          out(type, s.B * s.Hq * s.N * s.Dv),
          lse(compute, s.B * s.Hq * s.N),
          normalisers(compute, 2 * s.B * s.Hq * s.N) {
        for (int64_t i = 0; i < s.N; ++i) {
            spans.push_back(0);
            spans.push_back(int32_t(s.causal ? s.M - s.N + i + 1 : s.M));
        }
        by_loops();
    }

    size_t row(int64_t b, int64_t h, int64_t i) const { return size_t((b * s.Hq + h) * s.N + i); }
    size_t key(int64_t b, int64_t h, int64_t j) const { return size_t((b * s.Hkv + h * s.Hkv / s.Hq) * s.M + j); }

    void by_loops() {
        const double scale = 1 / std::sqrt(double(s.D));
        weights.assign(s.B * s.Hq * s.N * s.M, 0);
        y.assign(out.values.size(), 0), entropy.assign(s.B * s.Hq * s.N, 0), received.assign(s.B * s.Hq * s.M, 0);
        dq.assign(q.values.size(), 0), dk.assign(k.values.size(), 0), dv.assign(v.values.size(), 0);
        for (int64_t b = 0; b < s.B; ++b)
            for (int64_t h = 0; h < s.Hq; ++h)
                for (int64_t i = 0; i < s.N; ++i) one_row(b, h, i, scale);
    }

    void one_row(int64_t b, int64_t h, int64_t i, double scale) {
        const size_t r = row(b, h, i);
        const int64_t end = spans[2 * i + 1];
        double* a = &weights[r * s.M];
        double total = 0, top = -INFINITY, delta = 0;
        for (int64_t j = 0; j < end; ++j) {
            for (int64_t d = 0; d < s.D; ++d) a[j] += scale * q.values[r * s.D + d] * k.values[key(b, h, j) * s.D + d];
            top = std::fmax(top, a[j]);
        }
        for (int64_t j = 0; j < end; ++j) total += a[j] = std::exp(a[j] - top);
        for (int64_t j = 0; j < end; ++j) {
            a[j] /= total;
            entropy[r] -= a[j] > 0 ? a[j] * std::log(a[j]) : 0;
            received[(b * s.Hq + h) * s.M + j] += a[j];
            for (int64_t d = 0; d < s.Dv; ++d) y[r * s.Dv + d] += a[j] * v.values[key(b, h, j) * s.Dv + d];
        }
        for (int64_t d = 0; d < s.Dv; ++d) delta += dout.values[r * s.Dv + d] * y[r * s.Dv + d];
        for (int64_t j = 0; j < end; ++j) {
            double dp = 0;
            for (int64_t d = 0; d < s.Dv; ++d) {
                dp += dout.values[r * s.Dv + d] * v.values[key(b, h, j) * s.Dv + d];
                dv[key(b, h, j) * s.Dv + d] += a[j] * dout.values[r * s.Dv + d];
            }
            const double dx = a[j] * (dp - delta) * scale;
            for (int64_t d = 0; d < s.D; ++d) {
                dq[r * s.D + d] += dx * k.values[key(b, h, j) * s.D + d];
                dk[key(b, h, j) * s.D + d] += dx * q.values[r * s.D + d];
            }
        }
    }

    static Rows rows(Tensor& t, int64_t heads, int64_t n, int64_t width) {
        Rows r;
        r.data = t.memory.data(), r.type = t.type, r.batch = heads * n * width, r.head = n * width, r.row = width;
        return r;
    }

    Problem problem() {
        Problem p;
        p.B = s.B, p.Hq = s.Hq, p.Hkv = s.Hkv, p.N = s.N, p.M = s.M, p.D = s.D, p.Dv = s.Dv;
        p.q = rows(q, s.Hq, s.N, s.D), p.k = rows(k, s.Hkv, s.M, s.D), p.v = rows(v, s.Hkv, s.M, s.Dv);
        p.out = rows(out, s.Hq, s.N, s.Dv);
        p.lse = lse.memory.data(), p.normalisers = normalisers.memory.data();
        if (s.causal) p.spans = {spans.data(), 0, 1};
        p.scale = 1 / std::sqrt(double(s.D));
        return p;
    }

    void run(const std::string& name, int threads) {
        const double sums = 64 * rounding(compute), stored = sums + 2 * rounding(type);
        Problem p = problem();
        kernels().forward(p, threads);
        out.read();
        check(name + ", forward", out.values, y, stored);
        gradients(name, p, threads, stored);
        statistics(name, p, threads, sums);
    }

    void gradients(const std::string& name, const Problem& p, int threads, double tolerance) {
        Tensor gq(compute, dq.size()), gk(compute, dk.size()), gv(compute, dv.size());
        Gradients g;
        g.dout = rows(dout, s.Hq, s.N, s.Dv);
        g.dq = rows(gq, s.Hq, s.N, s.D), g.dk = rows(gk, s.Hkv, s.M, s.D), g.dv = rows(gv, s.Hkv, s.M, s.Dv);
        kernels().backward(p, g, threads);
        const std::pair<Tensor*, const Numbers*> all[] = {{&gq, &dq}, {&gk, &dk}, {&gv, &dv}};
        const char* names[] = {"dq", "dk", "dv"};
        for (int i = 0; i < 3; ++i) {
            all[i].first->read();
            check(name + ", " + names[i], all[i].first->values, *all[i].second, 8 * tolerance);
        }
    }

    void statistics(const std::string& name, Problem p, int threads, double tolerance) {
        Tensor found(compute, entropy.size()), sums(compute, received.size());
        p.v = p.k, p.Dv = 0, p.out = p.q;
        Statistics wanted;
        wanted.crop = {0, s.N, 0, s.M};
        wanted.requests.resize(2);
        wanted.requests[0].name = "entropy", wanted.requests[0].outputs = {found.memory.data()};
        wanted.requests[1].name = "received", wanted.requests[1].outputs = {sums.memory.data()};
        kernels().statistics(p, wanted, threads);
        found.read(), sums.read();
        check(name + ", entropy of rows", found.values, entropy, tolerance);
        check(name + ", sums of columns", sums.values, received, tolerance);
    }
};

void check_linear(Type type, int64_t rows, int threads) {
    const int64_t N = 331, D = 157;
    Tensor x = random(type, rows * D), w = random(type, N * D), bias = random(type, N);
    Tensor residual = random(type, rows * N), out(type, rows * N);
    Linear l{rows, D, type, x.memory.data(), 1, {}};
    l.parts[0] = {w.memory.data(), N, D, bias.memory.data(), residual.memory.data(), out.memory.data()};
    kernels().linear(l, threads);
    out.read();
    Numbers want(rows * N);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < N; ++j) {
            want[r * N + j] = bias.values[j] + residual.values[r * N + j];
            for (int64_t d = 0; d < D; ++d) want[r * N + j] += x.values[r * D + d] * w.values[j * D + d];
        }
    const Type compute = type == Type::f64 ? type : Type::f32;
    check("linear, " + std::to_string(rows) + " rows", out.values, want, 256 * rounding(compute) + rounding(type));
}

void check_norm(Type type) {
    const int64_t rows = 5, D = 83;
    Tensor x = random(type, rows * D), w = random(type, D), out(type, rows * D);
    kernels().rms_norm({rows, D, type, x.memory.data(), w.memory.data(), out.memory.data(), 1e-5}, 1);
    out.read();
    Numbers want(rows * D);
    for (int64_t r = 0; r < rows; ++r) {
        double squares = 0;
        for (int64_t d = 0; d < D; ++d) squares += x.values[r * D + d] * x.values[r * D + d];
        for (int64_t d = 0; d < D; ++d)
            want[r * D + d] = x.values[r * D + d] / std::sqrt(squares / D + 1e-5) * w.values[d];
    }
    check("rms_norm", out.values, want, 4 * rounding(type));
}

const char* name_of(Type type) {
    return type == Type::f64 ? "float64" : type == Type::f32 ? "float32" : type == Type::bf16 ? "bfloat16" : "float16";
}

}  // namespace

int main() {
    std::printf("instruction set: %s\n", kernels().name);
    // Many rows (queries in the lanes), grouped heads, several tiles and blocks; then one row, as in decoding.
    const std::pair<const char*, Shape> shapes[] = {
        {"prompt", {2, 3, 3, 61, 67, 19, 23, true}},
        {"grouped", {1, 6, 2, 37, 149, 64, 64, false}},
        {"long", {1, 1, 1, 131, 523, 32, 40, true}},
        {"decode", {2, 6, 2, 1, 1031, 64, 64, false}},
        {"decode, odd width", {1, 5, 5, 1, 211, 37, 29, false}},
        {"decode, two rows", {1, 4, 2, 1, 139, 40, 65, false}},
    };
    for (const Type type : {Type::f32, Type::f64, Type::bf16, Type::f16}) {
        for (const auto& [name, shape] : shapes)
            Attention(shape, type).run(std::string(name_of(type)) + ", " + name, 2);
        for (const int64_t rows : {1, 2, 3, 5, 8}) check_linear(type, rows, 2);
        check_norm(type);
    }
    std::printf(failures ? "%d checks failed\n" : "all passed\n", failures);
    return failures ? 1 : 0;
}
