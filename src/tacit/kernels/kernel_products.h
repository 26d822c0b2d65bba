// Matrix products, as sums over k of a number of A times a vector of B, for as many rows and
// vectors as the registers hold; and the copies that bring B into shape.
//
// A is read in place at any strides.  B has rows of whole vectors; weights that act as B are packed
// into panels once per step.  A sum begins at zero and is then added to C: beginning at a weight
// would round every term to the weight's last digit.

#pragma once

#include <utility>

#include "kernel_ends.h"

namespace {

constexpr long LONGEST_SUM = 512;  // terms of a product before they are added to the result
constexpr long PANEL = 3 * LANES;

// C [M rows, W vectors] from A [M, k] and B [k, W vectors].
template <int M, int W, class End>
inline __attribute__((always_inline)) void block(long k, const float* a, long a_row, long a_term,
                                                 const float* b, long b_row, long row, long at,
                                                 long width, const End& end) {
    Lanes sums[M][W] = {};
    end.template prepare<M>(row, at);
#pragma GCC unroll 4
    for (long term = 0; term < k; ++term) {
        Lanes right[W];
        for (int w = 0; w < W; ++w) hold(right[w] = load(b + w * LANES));
        for (int m = 0; m < M; ++m) {
            const Lanes left = all(a[m * a_row]);
            for (int w = 0; w < W; ++w) sums[m][w] += left * right[w];
        }
        a += a_term;
        b += b_row;
    }
    end(sums, row, at, width);
}

// Not inlined: amid other code the compiler may run out of registers for the sums, and a block
// whose sums are in memory takes four times as long.
template <int M, int W, class End>
__attribute__((noinline)) void column(long row, long rows, long k, const float* a, long a_row,
                                      long a_term, const float* b, long b_row, long at, long width,
                                      const End& end) {
    for (; rows - row >= M; row += M)
        block<M, W>(k, a + row * a_row, a_row, a_term, b, b_row, row, at, width, end);
    if constexpr (M > 1)
        if (row < rows)
            column<M / 2, W>(row, rows, k, a, a_row, a_term, b, b_row, at, width, end);
}

// C [m, n] from A [m, k] at any strides and B [k, n], whose rows are whole vectors.
template <class End>
void product(long m, long n, long k, const float* a, long a_row, long a_term, const float* b,
             long b_row, const End& end) {
    const long vectors = (n + LANES - 1) / LANES;
    for (long done = 0; done < vectors;) {
        const long left = vectors - done, at = done * LANES;
        // Threes, with pairs before them where threes alone would leave a rest.
        const long take = left % 3 == 0 ? 3 : left >= 2 ? 2 : 1;
        if (take == 3)
            column<ROWS_OF_3, 3>(0, m, k, a, a_row, a_term, b + at, b_row, at, n - at, end);
        else if (take == 2)
            column<ROWS_OF_2, 2>(0, m, k, a, a_row, a_term, b + at, b_row, at, n - at, end);
        else
            column<ROWS_OF_1, 1>(0, m, k, a, a_row, a_term, b + at, b_row, at, n - at, end);
        done += take;
    }
}

// C += alpha A B for sums of any length.
void add_product(long m, long n, long k, const float* a, long a_row, long a_term, const float* b,
                 long b_row, float* c, long c_row, float alpha) {
    for (long term = 0; term < k; term += LONGEST_SUM)
        product(m, n, smaller(LONGEST_SUM, k - term), a + term * a_term, a_row, a_term,
                b + term * b_row, b_row, Add{c, c_row, alpha});
}

// A matrix [terms, columns] as B, in panels of three vectors one after the other, zero at the end.
struct Panels {
    float* data;
    long terms, columns;
    long count() const { return (columns + PANEL - 1) / PANEL; }
    float* panel(long i) const { return data + i * terms * PANEL; }
};

template <class End>
void product(long m, const float* a, long a_row, const Panels& b, const End& end) {
    for (long i = 0; i < b.count(); ++i)
        column<ROWS_OF_3, 3>(0, m, b.terms, a, a_row, 1, b.panel(i), PANEL, i * PANEL,
                             b.columns - i * PANEL, end);
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TACIT_SHUFFLES
#endif
#endif

#ifdef TACIT_SHUFFLES
// Of two vectors: the pieces of `Size` lanes at even places of both, or those at odd places.
template <int Size, bool Odd, int... I>
inline Lanes pieces(Lanes x, Lanes y, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(
        x, y, ((I / Size) % 2 ? int(LANES) + I - (Odd ? 0 : Size) : I + (Odd ? Size : 0))...);
}

template <int Size>
inline void exchange(Lanes (&v)[LANES]) {
    constexpr auto lanes = std::make_integer_sequence<int, LANES>();
    for (int i = 0; i < LANES; ++i)
        if ((i / Size) % 2 == 0) {
            const Lanes x = v[i], y = v[i + Size];
            v[i] = pieces<Size, false>(x, y, lanes);
            v[i + Size] = pieces<Size, true>(x, y, lanes);
        }
    if constexpr (2 * Size < LANES) exchange<2 * Size>(v);
}
#endif

// The sum of the lanes of each of the vectors.
inline Lanes row_sums(Lanes (&v)[LANES]) {
#ifdef TACIT_SHUFFLES
    exchange<1>(v);
    Lanes total = v[0];
    for (int i = 1; i < LANES; ++i) total += v[i];
    return total;
#else
    Lanes total = {};
    for (int i = 0; i < LANES; ++i)
        for (int j = 0; j < LANES; ++j) total[i] += v[i][j];
    return total;
#endif
}

// to[j][i] = row_of(i)[j] for i < rows, j < columns; where a row is null, zeros.
template <class RowOf>
void transpose(RowOf row_of, long rows, long columns, float* to, long to_row) {
    for (long j = 0; j < columns; j += LANES)  // in the order of what is written
        for (long i = 0; i < rows; i += LANES) {
            const long width = smaller(LANES, columns - j), height = smaller(LANES, rows - i);
            const float* from[LANES];
            bool whole = width == LANES && height == LANES;
            for (long r = 0; r < height; ++r) whole &= (from[r] = row_of(i + r)) != nullptr;
            float* corner = to + j * to_row + i;
#ifdef TACIT_SHUFFLES
            if (whole) {
                Lanes v[LANES];
                for (long r = 0; r < LANES; ++r) v[r] = load(from[r] + j);
                exchange<1>(v);
                for (long r = 0; r < LANES; ++r) store(corner + r * to_row, v[r]);
                continue;
            }
#endif
            for (long c = 0; c < width; ++c)
                for (long r = 0; r < height; ++r)
                    corner[c * to_row + r] = from[r] ? from[r][j + c] : 0.0f;
        }
}

// A matrix of weights as B both ways, turned and as it is, so that it comes from far only once.
// `row_of(i)` is where its row i begins, or null for zeros.
template <class RowOf>
void pack(const Panels& turned, const Panels& straight, RowOf row_of) {
    const long width = turned.terms;
    for (long i = 0; i < turned.count(); ++i) {
        const float* rows[PANEL];
        for (long r = 0; r < PANEL; ++r)
            rows[r] = i * PANEL + r < turned.columns ? row_of(i * PANEL + r) : nullptr;
        transpose([&](long r) { return rows[r]; }, PANEL, width, turned.panel(i), PANEL);
        const long count = smaller(PANEL, straight.terms - i * PANEL);
        for (long p = 0; p < straight.count(); ++p) {
            const long at = p * PANEL;
            for (long r = 0; r < count; ++r) {
                float* to = straight.panel(p) + (i * PANEL + r) * PANEL;
                if (rows[r] && at + PANEL <= width) {
                    for (long j = 0; j < PANEL; j += LANES) store(to + j, load(rows[r] + at + j));
                } else {
                    const long exist = rows[r] && at < width ? smaller(width - at, PANEL) : 0;
                    for (long j = 0; j < PANEL; ++j) to[j] = j < exist ? rows[r][at + j] : 0.0f;
                }
            }
        }
    }
}

}  // namespace
