// Vectors as wide as the processor has them, and the functions that gates and softmax need of them.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr long LANES = 16;  // 32 registers
constexpr int ROWS_OF_1 = 12, ROWS_OF_2 = 12, ROWS_OF_3 = 8;
#elif defined(__AVX__)
constexpr long LANES = 8;  // 16 registers
constexpr int ROWS_OF_1 = 8, ROWS_OF_2 = 6, ROWS_OF_3 = 4;
#else
constexpr long LANES = 4;
constexpr int ROWS_OF_1 = 8, ROWS_OF_2 = 6, ROWS_OF_3 = 4;
#endif

typedef float Vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef float Lanes __attribute__((vector_size(LANES * 4)));
typedef int32_t Integers __attribute__((vector_size(LANES * 4)));

inline Lanes load(const float* p) { return *reinterpret_cast<const Vector*>(p); }
inline void store(float* p, Lanes v) { *reinterpret_cast<Vector*>(p) = v; }
inline Lanes all(float x) { return x - Lanes{}; }  // x - 0 is x, also for -0
inline long padded(long n) { return (n + LANES - 1) / LANES * LANES; }
// Rows a multiple of 2 KB apart fall into the same few sets of the cache.
inline long stride(long n) { return padded(n) % 512 ? padded(n) : padded(n) + LANES; }
inline long smaller(long a, long b) { return a < b ? a : b; }

inline Lanes load_part(const float* from, long width) {
    float parts[LANES] = {};
    for (long i = 0; i < width; ++i) parts[i] = from[i];
    return load(parts);
}

// Keeps a vector in its register: compilers like to load it again for every use.
inline void hold(Lanes& v) {
#if defined(__x86_64__)
    __asm__("" : "+v"(v));
#elif defined(__aarch64__)
    __asm__("" : "+w"(v));
#else
    (void)v;
#endif
}

constexpr float LOG2_E = 1.44269504f;
constexpr double LN_2 = 0.693147180559945;
constexpr float ROUNDS = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number

inline Integers bits_of(Lanes x) {
    Integers bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline Lanes of_bits(Integers bits) {
    Lanes x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Between the two; NaN stays NaN, because it is neither smaller nor larger.
inline Lanes clamped(Lanes x, Lanes low, Lanes high) {
#if defined(__AVX__) && !defined(__AVX512F__) && !defined(__clang__)
    // gcc does not see that a comparison and a choice are one instruction.
    return __builtin_ia32_maxps256(low, __builtin_ia32_minps256(high, x));
#else
    x = high < x ? high : x;
    return low > x ? low : x;
#endif
}

struct Repeated {  // a number as a whole vector in memory
    float lanes[LANES];
    constexpr Repeated(float x) : lanes() {
        for (float& lane : lanes) lane = x;
    }
};
// The range of x, what rounds it, and the polynomial.
alignas(64) constexpr Repeated POWER_OF_2[] = {
    -125.0f,       127.4f,       ROUNDS,       0.00132764715f, 0.00967554133f,
    0.0555071328f, 0.240221197f, 0.693146967f, 1.00000007f,
};

// 2^x = 2^n 2^f with a whole n and |f| <= 1/2; adding n to the exponent's bits multiplies by 2^n.
// Several at once, because each waits for its own last result.  The constants are read from memory
// as they are used: if the compiler knew them, it would want registers, and the sums have them all.
template <int M>
inline __attribute__((always_inline)) void powers_of_2(Lanes (&x)[M]) {
    const Repeated* table = POWER_OF_2;
    __asm__("" : "+r"(table));
    auto constant = [table](int i) { return load(table[i].lanes); };
    Lanes shifted[M], p[M];
    for (int m = 0; m < M; ++m) x[m] = clamped(x[m], constant(0), constant(1));
    for (int m = 0; m < M; ++m) shifted[m] = x[m] + constant(2);
    for (int m = 0; m < M; ++m) x[m] = x[m] - (shifted[m] - constant(2));
    for (int m = 0; m < M; ++m) p[m] = x[m] * constant(3) + constant(4);
    for (int i = 5; i < 9; ++i)
        for (int m = 0; m < M; ++m) p[m] = p[m] * x[m] + constant(i);
    for (int m = 0; m < M; ++m) x[m] = of_bits(bits_of(p[m]) + (bits_of(shifted[m]) << 23));
}

inline Lanes power_of_2(Lanes x) {
    Lanes one[] = {x};
    powers_of_2(one);
    return one[0];
}

inline Lanes sigmoid(Lanes x) { return 1.0f / (1.0f + power_of_2(x * -LOG2_E)); }

// tanh(x) = u / (u + 2) with u = e^2x - 1, which keeps its digits near zero: e^r - 1 begins with r.
inline Lanes tanh_of(Lanes x) {
    x = clamped(x + x, all(-30.0f), all(30.0f));
    const Lanes shifted = x * LOG2_E + ROUNDS, n = shifted - ROUNDS;
    Lanes r = x - n * 0.693359375f;  // ln 2 in two parts, so that r is exact
    r = r + n * 2.12194440e-4f;
    const Lanes power = of_bits((bits_of(shifted) << 23) + (127 << 23));
    Lanes p = r * 1.3888889e-3f + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    const Lanes u = p * power + (power - 1.0f);
    return u / (u + 2.0f);
}

}  // namespace
