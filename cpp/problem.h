// What one attention call computes, in plain addresses and strides (in elements).
//
//   logits = softcap(scale · q kᵀ) + bias,   A = softmax(logits / temperature),   out = A v
//
// Query i of N stands at position M − N + i.
#pragma once

#include <cstddef>
#include <cstdint>

namespace limelight {

enum class Type : int { f32 = 0, f64 = 1, bf16 = 2, f16 = 3 };

// A (batch, head, row, width) tensor whose last axis is contiguous.
struct Rows {
    const char* data = nullptr;
    Type type = Type::f32;
    int64_t batch = 0, head = 0, row = 0;
};

// A (batch, head, query, key) tensor that may be broadcast along any axis (stride 0).
struct Grid {
    const char* data = nullptr;
    Type type = Type::f32;  // of no meaning for a boolean mask, which is read as bytes
    int64_t batch = 0, head = 0, row = 0, col = 0;
};

// For every query `count` sorted, disjoint half-open spans of keys; an empty span allows nothing.
struct Spans {
    const int32_t* data = nullptr;  // (batch or 1, N, count, 2); null allows every key
    int64_t batch = 0;
    int64_t count = 0;
};

struct Problem {
    int64_t B, Hq, Hkv, N, M, D, Dv;
    Rows q, k, v, out;  // out is written
    char* lse;          // (B, Hq, N) in the compute type, or null
    Spans spans;
    Grid mask, bias;
    // In the compute type, by query head; null where absent.
    const char* slopes;   // (Hq): bias −slope · |distance|
    // (Hq, N + M − 1): bias by position(query) − key, from −(N − 1) up, in units of temperature / log₂e.
    const char* offsets;
    const char* sink;  // (Hq): one extra logit that takes weight and gives no value
    double scale, softcap, temperature;  // softcap 0: none

    bool wide() const { return q.type == Type::f64; }  // computed in double, otherwise in float
};

inline size_t size_of(Type t) { return t == Type::f64 ? 8 : t == Type::f32 ? 4 : 2; }

// Keys are walked in blocks of this many; the scores of one block stay in the nearest cache.
constexpr int64_t kBlock = 128;

// A piece of the work: some strips of query rows of one unit against the keys [begin, end).
struct Task {
    int64_t batch, unit;        // unit: a query head, or a key head where its group is flattened
    int64_t strip, strips;      // which strips of the unit's rows
    int64_t begin, end;         // keys
    char* partial;              // where running sums go when the keys are split, or null
};

}  // namespace limelight
