// One attention call, in plain addresses and strides (in elements).
//
//   logits = softcap(scale · q kᵀ) + bias,   A = softmax(logits / temperature),   out = A v
//
// Query i of N stands at position M − N + shift + i, and shift is 0 for a whole matrix. "Compute type" is double where
// q is double, otherwise float.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace limelight {

enum class Type : int { f32 = 0, f64 = 1, bf16 = 2, f16 = 3, i8 = 4 };

inline size_t size_of(Type t) { return t == Type::f64 ? 8 : t == Type::f32 ? 4 : t == Type::i8 ? 1 : 2; }

// A (batch, head, row, width) tensor whose last axis is contiguous.
struct Rows {
    const char* data = nullptr;
    Type type = Type::f32;
    int64_t batch = 0, head = 0, row = 0;
    // For rows of bytes: the factor of each row, (batch, head, row), with contiguous rows.
    const float* scale = nullptr;
    int64_t scale_batch = 0, scale_head = 0;
};

// A (batch, head, query, key) tensor that may be broadcast along any axis (stride 0).
struct Grid {
    const char* data = nullptr;
    Type type = Type::f32;  // unused for a boolean mask, which is read as bytes
    int64_t batch = 0, head = 0, row = 0, col = 0;
};

// For every query `count` sorted, disjoint half-open spans of keys; an empty span allows nothing.
struct Spans {
    const int32_t* data = nullptr;  // (batch or 1, N, count, 2); null allows every key
    int64_t batch = 0;
    int64_t count = 0;
};

// The places of queries (N) and keys (M) in a matrix of other sizes from which they were chosen, in an order of their own;
// null where they are all of it.
struct Places {
    const int64_t *queries = nullptr, *keys = nullptr;
    int64_t N = 0, M = 0;  // of the matrix
};

struct Problem {
    int64_t B = 0, Hq = 0, Hkv = 0, N = 0, M = 0, D = 0, Dv = 0;
    Rows q, k, v, out;    // out is written
    char* lse = nullptr;  // (B, Hq, N) in the compute type: the log-sum-exp of every row
    // (2, B, Hq, N) in the compute type: the largest logit m of every row, in units of log 2, and Σ 2^(logit − m); 0 and
    // 1 where nothing is allowed. Weights are made from the two: the log-sum-exp has fewer digits.
    char* normalisers = nullptr;
    Spans spans;
    Grid mask, bias;
    // In the compute type, by query head; null where absent.
    const char* slopes = nullptr;  // (Hq): bias −slope · |distance|
    // (Hq, N + M − 1): bias by position(query) − key, from −(N − 1) up, in units of temperature / log₂e.
    const char* offsets = nullptr;
    const char* sink = nullptr;                      // (Hq): one extra logit that takes weight and gives no value
    double scale = 1, softcap = 0, temperature = 1;  // softcap 0: none
    double dropout = 0;                              // the share of weights that is removed
    uint64_t seed = 0;                               // of dropout
    // The place of the problem in a larger matrix of which it is a part: the last query stands `shift` keys after the
    // last key, and dropout counts queries and keys from `first_query` and `first_key`.
    int64_t shift = 0, first_query = 0, first_key = 0;
    // Where queries and keys have an order of their own: `bias` and `offsets` are those of the whole matrix, and dropout,
    // distances, diagonals and pictures go by these places. Spans, the dense mask and slopes go by the order here.
    Places places;
    // (B, Hkv, blocks of keys) in the compute type: the largest norm of the keys of a block, or null (alibi_skip.h).
    const char* key_norms = nullptr;

    bool wide() const { return q.type == Type::f64; }  // computed in double, otherwise in float
    double multiplications() const { return double(B) * Hq * N * M * (D + Dv); }
};

// The running softmax of rows whose keys come in several calls, in the compute type: the largest logit m so far, in units
// of log 2, l = Σ 2^(logit − m) and o = Σ 2^(logit − m) v (query_tile.h). At first they are −∞, 0 and 0.
struct RunningRows {
    Rows o;                           // (B, Hq, N, Dv)
    char *m = nullptr, *l = nullptr;  // (B, Hq, N), with contiguous rows
    int64_t batch = 0, head = 0;      // strides of m and l
};

// One statistic of the weights. Its file under statistics/ says what `outputs` and `numbers` hold; outputs are in the
// compute type unless that file says otherwise, and zero at first.
struct Request {
    std::string name;
    std::vector<char*> outputs;
    std::vector<double> numbers;
    Spans spans;  // a mask, where the statistic takes one
    Grid mask;
    Rows rows;  // a tensor (B, Hq, N, width), where the statistic takes one
};

// Where the gradients of a problem go, whose `out` and `normalisers` are known. What is written is in the compute type and
// zero at first; null where a gradient is not requested.
struct Gradients {
    Rows dout;
    const char* dlse = nullptr;  // (B, Hq, N) in the compute type, or null
    bool part = false;           // the normalisers are those of more keys than the problem has
    Rows dq, dk, dv;
    Grid bias;                      // of a dense bias; broadcast axes are summed
    char* offsets = nullptr;        // (Hq, N + M − 1)
    char* slopes = nullptr;         // (Hq)
    char* d_temperature = nullptr;  // (B, Hq, N): Σ over the keys of dx · x, where x = logits / temperature
    char* delta = nullptr;          // (B, Hq, N): Σ over the keys of P · dP, minus dlse
    // Statistics whose gradients are added to those of `out`: their outputs hold the gradients of what they compute
    // (statistics/gradient_terms.h). For those with a number for each row, dlse holds −Σ over the keys of P · term; for a
    // `part` it does so for all of them, since the keys of a part are not all keys.
    std::vector<Request> terms;
    // (B, Hq, N) in the compute type: where given, Σ over the keys of P · term is added here, of the terms for which it
    // does not follow from the statistic, and nothing else is computed.
    char* sums = nullptr;
};

// The part of the weights that column statistics look at: queries [query_begin, query_end), keys [key_begin, key_end).
struct Crop {
    int64_t query_begin = 0, query_end = 0, key_begin = 0, key_end = 0;
};

// The records of rows whose keys come in several calls, (B, Hq, N): what the statistics of a row are made of when all keys
// have come (statistics/row_statistic.h). Zeros at first. Strides are in bytes.
struct RunningRecords {
    char* data = nullptr;
    int64_t batch = 0, head = 0, row = 0;

    char* at(int64_t b, int64_t h, int64_t query) const { return data + b * batch + h * head + query * row; }
};

struct Statistics {
    std::vector<Request> requests;
    bool known = false;  // `lse` and `normalisers` of the problem are given; otherwise they are written
    Crop crop;
};

// How a forward pass is cut: into tasks, each of some rows of queries against a chunk of keys.
struct Cut {
    int64_t tasks, rows, keys, chunks;  // rows and keys of one task; chunks that a row's keys are cut into
};

// One matrix of a linear layer, (N, D) with contiguous rows.
struct LinearPart {
    const char* w;
    int64_t N, stride;     // from one row of w to the next
    const char* bias;      // (N), or null
    const char* residual;  // (rows, N), contiguous, which is added to the result; or null
    char* out;             // (rows, N), contiguous
};

constexpr int kLinearParts = 3;  // as many matrices may share x
constexpr int kLinearRows = 8;   // as many rows x may have

// out = x wᵀ + bias for each matrix, all of one type: x (rows, D) contiguous.
struct Linear {
    int64_t rows, D;
    Type type;
    const char* x;
    int count;
    LinearPart parts[kLinearParts];
};

// out = x / √(mean(x²) + eps) ∘ weight, all of one type: x and out (rows, D) contiguous, weight (D) or null.
struct RmsNorm {
    int64_t rows, D;
    Type type;
    const char *x, *weight;
    char* out;
    double eps;
};

// Rotary positions: pairs of the first `width` features of (B, heads, N, D) tensors are rotated.
struct Rotation {
    struct Part {
        int64_t heads;
        Rows x, out;
    };
    int64_t B, N, D, width;
    Type type;
    bool interleaved;       // pairs are neighbours, otherwise the two halves
    const char *cos, *sin;  // (batch or 1, N, width / 2)
    int64_t angle_batch;    // stride of the batch; 0 where all elements have the same angles
    int count;
    Part parts[2];  // queries and keys
};

}  // namespace limelight
