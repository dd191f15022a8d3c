// A vector of T as wide as the instruction set that this file is compiled for.
//
// GCC's and Clang's vector extensions give one source for SSE2, AVX2, AVX-512 and NEON. Every
// including file is compiled once for each instruction set, so all of it lives in the namespace
// LIMELIGHT_ISA: two instruction sets never share an inline function.
#pragma once

#if defined(LIMELIGHT_X86)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#define LIMELIGHT_INLINE inline __attribute__((always_inline))

namespace limelight::LIMELIGHT_ISA {

template <class T> struct Bits;
template <> struct Bits<float> {
    using type = int32_t;
};
template <> struct Bits<double> {
    using type = int64_t;
};

template <class T> struct Simd {
    static constexpr int width = LIMELIGHT_BYTES / sizeof(T);
    using Bit = typename Bits<T>::type;
    typedef T V __attribute__((vector_size(LIMELIGHT_BYTES)));
    typedef Bit I __attribute__((vector_size(LIMELIGHT_BYTES)));
};

template <class T> using Vec = typename Simd<T>::V;
template <class T> using IntVec = typename Simd<T>::I;
template <class T> constexpr int kWidth = Simd<T>::width;
template <class T> constexpr T kInf = std::numeric_limits<T>::infinity();

template <class T> LIMELIGHT_INLINE Vec<T> broadcast(T x) { return x - Vec<T>{}; }

template <class T> LIMELIGHT_INLINE Vec<T> load(const T* p) {
    Vec<T> v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

template <class T> LIMELIGHT_INLINE void store(T* p, Vec<T> v) { std::memcpy(p, &v, sizeof v); }

// max(NaN, b) = b, as the machine's instruction has it: a NaN score never becomes a row's maximum,
// it reaches the sums through the exponential.
template <class V> LIMELIGHT_INLINE V larger(V a, V b) { return a > b ? a : b; }

// min(a, NaN) = NaN.
template <class V> LIMELIGHT_INLINE V smaller(V a, V b) { return a < b ? a : b; }

template <class T> LIMELIGHT_INLINE Vec<T> magnitude(Vec<T> v) {
    return (Vec<T>)((IntVec<T>)v & std::numeric_limits<typename Simd<T>::Bit>::max());
}

// Hides a constant's value, without which GCC makes two instructions of a maximum with it. The constraint names all vector
// registers: with AVX-512, "x" would be the first sixteen.
template <class V> LIMELIGHT_INLINE V opaque(V v) {
#if defined(__AVX512F__)
    asm("" : "+v"(v));
#elif defined(__x86_64__) && LIMELIGHT_BYTES <= 32
    asm("" : "+x"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#endif
    return v;
}

// x in a register where it has several uses: GCC would load it again for each of them.
template <bool several, class V> LIMELIGHT_INLINE V in_register(V x) { return several ? opaque(x) : x; }

// Keeps the order of what is made before and after. Clang would load for later rounds of an unrolled loop ahead, until there are
// no registers left, and keeps the order of what is volatile.
LIMELIGHT_INLINE void keep_order() {
#if defined(__clang__)
    asm volatile("");
#endif
}

// Lane i of the result is lane at(i) of a, or lane at(i) − width of b.
template <class T, class At, int... I>
LIMELIGHT_INLINE Vec<T> shuffle(Vec<T> a, Vec<T> b, At at, std::integer_sequence<int, I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, at(std::integral_constant<int, I>{})...);
#else
    return __builtin_shuffle(a, b, IntVec<T>{at(std::integral_constant<int, I>{})...});
#endif
}

template <class T, class At> LIMELIGHT_INLINE Vec<T> shuffle(Vec<T> a, Vec<T> b, At at) {
    return shuffle<T>(a, b, at, std::make_integer_sequence<int, kWidth<T>>{});
}

// One bit for each lane, set where the lane is.
template <class T> LIMELIGHT_INLINE uint32_t bits(IntVec<T> v) {
#if defined(LIMELIGHT_X86) && LIMELIGHT_BYTES == 64
    if constexpr (sizeof(T) == 8) return _mm512_movepi64_mask((__m512i)v);
    else return _mm512_movepi32_mask((__m512i)v);
#elif defined(LIMELIGHT_X86) && LIMELIGHT_BYTES == 32
    if constexpr (sizeof(T) == 8) return uint32_t(_mm256_movemask_pd((__m256d)v));
    else return uint32_t(_mm256_movemask_ps((__m256)v));
#elif defined(LIMELIGHT_X86)
    if constexpr (sizeof(T) == 8) return uint32_t(_mm_movemask_pd((__m128d)v));
    else return uint32_t(_mm_movemask_ps((__m128)v));
#else
    uint32_t set = 0;
    for (int i = 0; i < kWidth<T>; ++i) set |= uint32_t(v[i] != 0) << i;
    return set;
#endif
}

// Every lane receives the sum of the lanes that are a multiple of `step` away, in a fixed order.
template <int step, class T, int by = kWidth<T> / 2> LIMELIGHT_INLINE Vec<T> fold(Vec<T> v) {
    if constexpr (by < step) {
        return v;
    } else {
        v += shuffle<T>(v, v, [](auto i) { return (i + by) % kWidth<T>; });
        return fold<step, T, by / 2>(v);
    }
}

// The sum of all lanes.
template <class T> LIMELIGHT_INLINE T sum(Vec<T> v) { return fold<1, T>(v)[0]; }

// The largest of all lanes, none of which is NaN.
template <class T, int by = kWidth<T> / 2> LIMELIGHT_INLINE T largest(Vec<T> v) {
    if constexpr (by == 0) {
        return v[0];
    } else {
        return largest<T, by / 2>(larger(v, shuffle<T>(v, v, [](auto i) { return (i + by) % kWidth<T>; })));
    }
}

// 0, 1, 2, …
template <class T, int... I> LIMELIGHT_INLINE IntVec<T> lane_numbers(std::integer_sequence<int, I...>) {
    return IntVec<T>{I...};
}
template <class T> LIMELIGHT_INLINE IntVec<T> lane_numbers() {
    return lane_numbers<T>(std::make_integer_sequence<int, kWidth<T>>{});
}

// Lane i of the result is the sum of the lanes of v[i]. Two vectors become one at every level: half of its lanes have sums
// of the first, the other half of the second.
template <class T, int n = kWidth<T>> LIMELIGHT_INLINE Vec<T> sums(const Vec<T> (&v)[n]) {
    if constexpr (n == 1) {
        return v[0];
    } else {
        constexpr int half = n / 2;
        Vec<T> joined[half];
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i)
            joined[i] = (lane_numbers<T>() & half ? v[i + half] : v[i]) +
                        shuffle<T>(v[i], v[i + half], [](auto l) { return (l ^ half) + (l & half ? kWidth<T> : 0); });
        return sums<T, half>(joined);
    }
}

// Every lane receives the result of `join` over the n lanes of its group.
template <class T, int n, class Join, int by = n / 2> LIMELIGHT_INLINE Vec<T> join_lanes(Vec<T> v, Join join) {
    if constexpr (by == 0) return v;
    else return join_lanes<T, n, Join, by / 2>(join(v, shuffle<T>(v, v, [](auto l) { return l ^ by; })), join);
}

}  // namespace limelight::LIMELIGHT_ISA
