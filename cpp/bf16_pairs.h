// Products of bfloat16 numbers where the processor multiplies pairs of them by itself: one instruction adds the products of 32
// numbers to 16 sums. Otherwise these take two instructions to be widened and two multiply-adds. Products of bfloat16 are exact
// in float32, so the sums are rounded as those of multiply-adds are.
#pragma once

#include "half.h"
#include "kernels.h"

namespace limelight::LIMELIGHT_ISA {

// Numbers that one instruction multiplies.
constexpr int64_t kPaired = 2 * kWidth<float>;

// True if kernels are compiled for pairs: compilers without a header for the instruction have assemblers that do not know it.
#if defined(LIMELIGHT_X86) && LIMELIGHT_BYTES == 64 && __has_include(<avx512bf16intrin.h>)
#define LIMELIGHT_PAIRS
template <class C> constexpr bool kKnowsPairs = sizeof(C) == 4;
#else
template <class C> constexpr bool kKnowsPairs = false;
#endif

// True if rows of `width` numbers of two types are multiplied in pairs.
template <class C> bool multiplies_pairs(Type a, Type b, int64_t width) {
    return kKnowsPairs<C> && a == Type::bf16 && b == Type::bf16 && width % kPaired == 0 && kernels().multiplies_bf16;
}

// Each word of the result is a pair of x.
LIMELIGHT_INLINE Vec<float> load_pairs(const bf16* x) {
    Vec<float> v;
    std::memcpy(&v, x, sizeof v);
    return v;
}

// Copies of one pair.
LIMELIGHT_INLINE Vec<float> copies_of(const float* pair) {
    int32_t bits;
    std::memcpy(&bits, pair, sizeof bits);
    return (Vec<float>)(bits - IntVec<float>{});
}

// sum + the products of two vectors of pairs; without the instruction, what it computes.
LIMELIGHT_INLINE Vec<float> add_pairs(Vec<float> sum, Vec<float> x, Vec<float> y) {
#if defined(LIMELIGHT_PAIRS)
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
    return sum;
#else
    const WordBits a = (WordBits)x, b = (WordBits)y, second = WordBits{} + 0xffff0000;
    sum += (Vec<float>)(a & second) * (Vec<float>)(b & second);
    return sum + (Vec<float>)(a << 16) * (Vec<float>)(b << 16);
#endif
}

}  // namespace limelight::LIMELIGHT_ISA
