// Dropout's choice of weights, from Philox4x32-7, a counter-based generator (Salmon et al., 2011).
//
// The generator's key is the seed, its counter is (key / 4, query, head, batch), and a weight takes word key % 4
// of the four that this counter gives. So the random number of a weight depends on its place alone, not on
// blocks or threads, and the gradient computes the same numbers again without storing any.
#pragma once

#include "logits.h"

namespace limelight::LIMELIGHT_ISA {

typedef uint64_t Wide __attribute__((vector_size(LIMELIGHT_BYTES)));  // one 32-bit word in each lane

constexpr uint64_t kWord = 0xffffffff;

// The whole product of the lower halves.
LIMELIGHT_INLINE Wide product_of_words(Wide a, Wide b) {
#if defined(LIMELIGHT_X86) && LIMELIGHT_BYTES == 64
    return (Wide)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(LIMELIGHT_X86) && LIMELIGHT_BYTES == 32
    return (Wide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(LIMELIGHT_X86)
    return (Wide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & kWord) * (b & kWord);
#endif
}

// Encrypts the counter c; the upper halves of its lanes have no meaning.
LIMELIGHT_INLINE void philox(Wide (&c)[4], uint64_t seed) {
    uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
#pragma GCC unroll 7
    for (int round = 0; round < 7; ++round) {
        const Wide a = product_of_words(c[0], Wide{} + 0xD2511F53), b = product_of_words(c[2], Wide{} + 0xCD9E8D57);
        c[0] = (b >> 32) ^ c[1] ^ uint64_t(key0);
        c[1] = b;
        c[2] = (a >> 32) ^ c[3] ^ uint64_t(key1);
        c[3] = a;
        key0 += 0x9E3779B9, key1 += 0xBB67AE85;
    }
}

// True in lanes whose words reach a limit; words lie in one Wide for doubles, in two (even, odd lanes) for floats.
template <class C> LIMELIGHT_INLINE IntVec<C> reaches(const Wide* words, uint32_t limit) {
    if constexpr (sizeof(C) == 8) return (IntVec<C>)((words[0] & kWord) >= uint64_t(limit));
    else return (IntVec<C>)((WordBits)((words[0] & kWord) | words[1] << 32) >= limit);
}

// The words of four keys, from the counters of the lanes.
template <class C, int parts>
LIMELIGHT_INLINE void draw_words(const Block<C>& b, int64_t four, const Wide (&query)[parts], const Wide (&head)[parts],
                                 Wide (&word)[4][parts]) {
#pragma GCC unroll 2
    for (int part = 0; part < parts; ++part) {
        Wide c[4] = {Wide{} + uint64_t(four), query[part], head[part], Wide{} + uint64_t(b.batch)};
        philox(c, b.p.seed);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) word[i][part] = c[i];
    }
}

// f(place in the block, lanes that are kept) for every vector of a block of weights.
template <class C, class F> LIMELIGHT_INLINE void for_kept(const Block<C>& b, F&& f) {
    constexpr int W = kWidth<C>, parts = 8 / sizeof(C), lanes = W / parts;
    const uint32_t limit = uint32_t(b.p.dropout * 0x1p32);
    for (int r = 0; r < b.lanes; r += W) {
        uint64_t queries[parts][lanes], heads[parts][lanes];
        for (int i = 0; i < W; ++i) {
            const Row& row = b.rows[min(r + i, b.row_count - 1)];
            queries[i % parts][i / parts] = query_place(b.p, row.query) + b.p.first_query;
            heads[i % parts][i / parts] = row.head;
        }
        Wide query[parts], head[parts];
        static_assert(sizeof(query) == sizeof(queries));
        std::memcpy(query, queries, sizeof(query));
        std::memcpy(head, heads, sizeof(head));
        if (b.p.places.keys) {  // in an order in which keys seldom share their words
            const int64_t* keys = b.p.places.keys + b.first;
            for (int64_t j = 0, four; j < b.n;) {
                Wide word[4][parts];
                draw_words(b, four = keys[j] / 4, query, head, word);
                for (; j < b.n && keys[j] / 4 == four; ++j) f(j * b.lanes + r, reaches<C>(word[keys[j] % 4], limit));
            }
            continue;
        }
        const int64_t first = b.first + b.p.first_key;
        for (int64_t four = first / 4; four * 4 < first + b.n; ++four) {
            Wide word[4][parts];
            draw_words(b, four, query, head, word);
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                const int64_t j = four * 4 + i - first;
                if (j >= 0 && j < b.n) f(j * b.lanes + r, reaches<C>(word[i], limit));
            }
        }
    }
}

// Removes the weights that are not kept.
template <class C> void drop_weights(const Block<C>& b) {
    for_kept(b, [&](int64_t i, IntVec<C> kept) { store(b.s + i, (Vec<C>)(kept & (IntVec<C>)load(b.s + i))); });
}

}  // namespace limelight::LIMELIGHT_ISA
