// What one attention call computes, in plain addresses and strides (in elements).
//
//   logits = softcap(scale · q kᵀ) + bias,   A = softmax(logits / temperature),   out = A v
//
// Query i of N stands at position M − N + i.
#pragma once

#include <cstddef>
#include <cstdint>

namespace limelight {

enum class Type : int { f32 = 0, f64 = 1, bf16 = 2, f16 = 3, i8 = 4 };

// A (batch, head, row, width) tensor whose last axis is contiguous.
struct Rows {
    const char* data = nullptr;
    Type type = Type::f32;
    int64_t batch = 0, head = 0, row = 0;
    // Where the numbers are bytes: what each row is multiplied by, (batch, head, row), rows one after the other.
    const float* scale = nullptr;
    int64_t scale_batch = 0, scale_head = 0;
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
    char* lse;          // in the compute type: (3, B, Hq, N) to be written or asked from, (B, Hq, N) for gradients
    Spans spans;
    Grid mask, bias;
    // In the compute type, by query head; null where absent.
    const char* slopes;   // (Hq): bias −slope · |distance|
    // (Hq, N + M − 1): bias by position(query) − key, from −(N − 1) up, in units of temperature / log₂e.
    const char* offsets;
    const char* sink;  // (Hq): one extra logit that takes weight and gives no value
    double scale, softcap, temperature;  // softcap 0: none
    double dropout;                      // the share of weights that is removed
    uint64_t seed;                       // of dropout
    // (B, Hkv, blocks of keys) in the compute type: the largest norm of the keys of a block; null where
    // nobody asks.
    const char* reach = nullptr;

    bool wide() const { return q.type == Type::f64; }  // computed in double, otherwise in float
};

// Where the gradients of a problem go, whose `out` and `lse` are given then. What is written is in the
// compute type and zero at first; null where it is not asked for.
struct Gradients {
    Rows dout;         // of the output
    const char* dlse;  // of the log-sum-exp: (B, Hq, N) in the compute type, or null
    Rows dq, dk, dv;
    Grid bias;      // of a dense bias; broadcast axes are summed
    char* offsets;  // (Hq, N + M − 1)
    char* slopes;   // (Hq)
    char* heat;     // (B, Hq, N): Σ over the keys of dx · x, where x = logits / temperature
    char* delta;    // (B, Hq, N): Σ over the keys of P · dP, minus dlse
};

// What is asked of the weights; null where it is not asked. What is written is in the compute type, that of the
// columns zero at first. The `lse` of the problem is (3, B, Hq, N) here: the log-sum-exp of every row, and apart, in
// units of log 2, its largest logit and the logarithm of what its weights add up to beside that one; together they
// would lose their digits where logits are large.
struct Questions {
    bool known;   // the log-sum-exp is given
    bool finite;  // all of u
    // By row.
    char *entropy, *distance, *mass;  // (B, Hq, N)
    Spans mass_spans;                 // the keys whose weights make the mass: in the spans, and where the mask is true
    Grid mass_mask;
    char* top_values;   // (B, Hq, N, top): the largest weights, in order
    int64_t* top_keys;  // the same shape
    int64_t top;
    // By column.
    char* received;   // (B, Hq, M): Σ over the queries
    char* diagonals;  // (B, Hq, N + M − 1): Σ by position − key, from −(N − 1) up
    int64_t radius;   // further than this from the middle, diagonals are of no interest
    Rows u, sent;     // (B, Hq, N, width) in any type, (B, Hq, M, width): Aᵀ u
    int64_t width;
    char* pool;  // (B, Hq, pool_rows, pool_cols): sums of the weights that a cell covers, or the largest
    int64_t pool_rows, pool_cols;
    bool largest;
    char* products;  // (B, Hq, Hq): Σ over all weights of two heads' products

    bool of_rows() const { return !known || entropy || distance || mass || top; }
    bool of_columns() const { return received || diagonals || sent.data || pool || products; }
};

inline size_t size_of(Type t) { return t == Type::f64 ? 8 : t == Type::f32 ? 4 : t == Type::i8 ? 1 : 2; }

// Keys are walked in blocks of this many; the scores of one block stay in the nearest cache.
constexpr int64_t kBlock = 128;

// A piece of the work: some strips of query rows of one unit against the keys [begin, end).
struct Task {
    int64_t batch, unit;        // unit: a query head, or a key head where its group is flattened
    int64_t strip, strips;      // which strips of the unit's rows
    int64_t begin, end;         // keys
    char* partial;              // where running sums go when the keys are split, or null
};

// A piece of the gradient's work: rows of the query heads of one key head, one head after the other,
// against a range of keys.
struct Square {
    int64_t batch, head;  // of the keys
    int64_t row_begin, row_end, key_begin, key_end;
    char *offsets, *slopes;  // sums of its own, as in Gradients
};

// out = x wᵀ + bias, all of one type: x (rows, D) and out (rows, N) contiguous, at most four rows.
struct Linear {
    int64_t rows, N, D;
    Type type;
    const char *x, *w;
    int64_t stride;  // from one row of w to the next
    const char* bias;  // (N), or null
    char* out;
};

// The part of a picture that a task draws: cells [first, first + cols) of every row of cells, (head, row, cell).
struct Picture {
    double* cells;
    int64_t first, cols;
};

// What a task that answers questions adds up for itself, because others have a share in it.
struct Share {
    char *entropy, *distance;  // (Hq, N) in the compute type
    char* diagonals;   // (Hq, N + M − 1) in the compute type
    Picture picture;
    double* products;  // (Hq, Hq)
};

}  // namespace limelight
