// bfloat16, float16 and bytes as they lie in memory, and their exact conversions.
#pragma once

#include "simd.h"

namespace limelight::LIMELIGHT_ISA {

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

template <class To, class From> LIMELIGHT_INLINE To bit_cast(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}

LIMELIGHT_INLINE float widen(float x) { return x; }
LIMELIGHT_INLINE float widen(int8_t x) { return float(x); }
LIMELIGHT_INLINE double widen(double x) { return x; }
LIMELIGHT_INLINE float widen(bf16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }

#if defined(__aarch64__)
LIMELIGHT_INLINE float widen(f16 x) { return float(bit_cast<__fp16>(x.bits)); }
#else
// The exponent is moved by a multiplication, which makes subnormals right; all ones mean ∞ or NaN.
LIMELIGHT_INLINE float widen(f16 x) {
    const uint32_t magnitude = uint32_t(x.bits & 0x7fff) << 13;
    const uint32_t special = (x.bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
    const uint32_t sign = uint32_t(x.bits & 0x8000) << 16;
    return bit_cast<float>(bit_cast<uint32_t>(bit_cast<float>(magnitude) * 0x1p112f) | special | sign);
}
#endif

// Round to nearest, ties to even.
template <class E, class C> LIMELIGHT_INLINE E narrow(C x) { return static_cast<E>(x); }

template <> LIMELIGHT_INLINE bf16 narrow<bf16, float>(float x) {
    const uint32_t u = bit_cast<uint32_t>(x);
    if ((u & 0x7fffffff) > 0x7f800000) return {uint16_t(u >> 16 | 0x40)};
    return {uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}

template <> LIMELIGHT_INLINE f16 narrow<f16, float>(float x) {
#if defined(__aarch64__)
    return {bit_cast<uint16_t>(__fp16(x))};
#else
    const uint32_t u = bit_cast<uint32_t>(x);
    const uint16_t sign = uint16_t(u >> 16 & 0x8000);
    const uint32_t magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return {uint16_t(sign | 0x7e00)};
    if (magnitude >= 0x47800000) return {uint16_t(sign | 0x7c00)};
    if (magnitude < 0x38800000) {  // subnormal: adding 1/2 lets the addition round
        const uint32_t rounded = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f);
        return {uint16_t(sign | (rounded - 0x3f000000))};
    }
    const uint32_t rebased = magnitude - (112u << 23);
    return {uint16_t(sign | ((rebased + 0xfff + (rebased >> 13 & 1)) >> 13))};
#endif
}

template <> LIMELIGHT_INLINE bf16 narrow<bf16, double>(double x) { return narrow<bf16>(float(x)); }
template <> LIMELIGHT_INLINE f16 narrow<f16, double>(double x) { return narrow<f16>(float(x)); }

// kWidth<C> consecutive numbers.
template <class C> LIMELIGHT_INLINE Vec<C> load_as(const C* p) { return load(p); }

typedef uint16_t HalfBits __attribute__((vector_size(LIMELIGHT_BYTES / 2)));
typedef uint32_t WordBits __attribute__((vector_size(LIMELIGHT_BYTES)));

LIMELIGHT_INLINE WordBits load_bits(const void* p) {
    HalfBits h;
    std::memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, WordBits);
}

template <class C> LIMELIGHT_INLINE Vec<float> load_as(const int8_t* p) {
#if defined(LIMELIGHT_X86) && LIMELIGHT_BYTES == 64
    return (Vec<float>)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(LIMELIGHT_X86) && LIMELIGHT_BYTES == 32
    return (Vec<float>)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
    Vec<float> v;
    for (int i = 0; i < kWidth<float>; ++i) v[i] = float(p[i]);
    return v;
#endif
}

template <class C> LIMELIGHT_INLINE Vec<float> load_as(const bf16* p) {
#if defined(__aarch64__) && LIMELIGHT_BYTES == 16
    return (Vec<float>)vshll_n_u16(vld1_u16(&p->bits), 16);
#else
    return (Vec<float>)(load_bits(p) << 16);
#endif
}

template <class C> LIMELIGHT_INLINE Vec<float> load_as(const f16* p) {
#if defined(LIMELIGHT_X86) && LIMELIGHT_BYTES == 64
    return (Vec<float>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__) && LIMELIGHT_BYTES == 32
    return (Vec<float>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__) && LIMELIGHT_BYTES == 16
    return (Vec<float>)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
#else
    const WordBits h = load_bits(p);
    const Vec<float> magnitude = (Vec<float>)((h & 0x7fff) << 13) * 0x1p112f;
    const WordBits special = (WordBits)((h & 0x7c00) == 0x7c00) & 0x7f800000;
    return (Vec<float>)((WordBits)magnitude | special | (h & 0x8000) << 16);
#endif
}

// Two vectors of numbers that lie one after the other. bfloat16 is widened by one instruction each if the first vector has
// those at even places and the second the others; `in_order` and `split_places` go from one order to the other.
template <class C> struct VecPair {
    Vec<C> first, second;
};

template <class C, class E> LIMELIGHT_INLINE VecPair<C> load_two(const E* p) {
    return {load_as<C>(p), load_as<C>(p + kWidth<C>)};
}

template <class C> LIMELIGHT_INLINE VecPair<C> load_two(const bf16* p) {
    WordBits u;
    std::memcpy(&u, p, sizeof u);
    return {(Vec<C>)(u << 16), (Vec<C>)(u & 0xffff0000)};
}

// A pair in the order of `load_two<E>`, in the order of memory.
template <class C, class E> LIMELIGHT_INLINE VecPair<C> in_order(Vec<C> a, Vec<C> b) {
    if constexpr (std::is_same_v<E, bf16>) {
        constexpr int W = kWidth<C>;
        return {shuffle<C>(a, b, [](auto i) { return i / 2 + i % 2 * W; }),
                shuffle<C>(a, b, [](auto i) { return i / 2 + i % 2 * W + W / 2; })};
    } else {
        return {a, b};
    }
}

// Brings n numbers into the order of `load_two<E>`.
template <class C, class E> LIMELIGHT_INLINE void split_places(C* x, int64_t n) {
    constexpr int W = kWidth<C>;
    if constexpr (std::is_same_v<E, bf16>)
        for (int64_t d = 0; d + 2 * W <= n; d += 2 * W) {
            const Vec<C> a = load(x + d), b = load(x + d + W);
            store(x + d, shuffle<C>(a, b, [](auto i) { return 2 * i; }));
            store(x + d + W, shuffle<C>(a, b, [](auto i) { return 2 * i + 1; }));
        }
}

LIMELIGHT_INLINE HalfBits to_bf16(Vec<float> v) {
    const WordBits u = (WordBits)v, rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return __builtin_convertvector((u & 0x7fffffff) > 0x7f800000 ? (u >> 16 | 0x40) : rounded, HalfBits);
}

// kWidth<C> consecutive numbers, rounded as `narrow` does.
template <class C, class E> LIMELIGHT_INLINE void store_as(E* p, Vec<C> v) {
    if constexpr (std::is_same_v<E, C>) {
        store(p, v);
    } else if constexpr (std::is_same_v<E, bf16> && sizeof(C) == 4) {
        const HalfBits h = to_bf16(v);
        std::memcpy(p, &h, sizeof h);
#if defined(LIMELIGHT_X86) && LIMELIGHT_BYTES == 64
    } else if constexpr (std::is_same_v<E, f16> && sizeof(C) == 4) {
        const __m256i h = _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT);
        std::memcpy(p, &h, sizeof h);
#elif defined(__F16C__) && LIMELIGHT_BYTES == 32
    } else if constexpr (std::is_same_v<E, f16> && sizeof(C) == 4) {
        const __m128i h = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
        std::memcpy(p, &h, sizeof h);
#endif
    } else {
        for (int i = 0; i < kWidth<C>; ++i) p[i] = narrow<E>(v[i]);
    }
}

}  // namespace limelight::LIMELIGHT_ISA
