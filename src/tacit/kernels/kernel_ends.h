// What becomes of a block of sums: `row`, `at` are its place in C, `width` its numbers that exist.
//
// `prepare` comes before the sums are made, and can have memory brought near in the meantime: a
// product computes so densely that the processor does not see far enough ahead by itself.

#pragma once

#include "kernel_vectors.h"

namespace {

constexpr long LINE = 16;  // floats that come to the cache together
constexpr int LINES = 7;   // a tile's lines per block, at the papers' sizes

struct Set {  // C = A B, where C's rows are whole vectors
    float* c;
    long c_row;
    template <int M>
    void prepare(long, long) const {}
    template <int M, int W>
    void operator()(const Lanes (&sums)[M][W], long row, long at, long) const {
        for (int m = 0; m < M; ++m)
            for (int w = 0; w < W; ++w) store(c + (row + m) * c_row + at + w * LANES, sums[m][w]);
    }
};

// C = 2^(A B + bias of the row - what is taken off the column), and the sums of its columns.
struct Exponentials {
    float* c;
    long c_row;
    const float *biases, *less;
    float* sum;
    template <int M>
    void prepare(long, long) const {}
    template <int M, int W>
    void operator()(Lanes (&sums)[M][W], long row, long at, long) const {
        float *to = c + row * c_row + at, *totals = sum + at;
        const long stride = c_row;
        if (biases)
            for (int m = 0; m < M; ++m)
                for (int w = 0; w < W; ++w) sums[m][w] += biases[row + m] * LOG2_E;
        if (less)
            for (int m = 0; m < M; ++m)
                for (int w = 0; w < W; ++w) sums[m][w] -= load(less + at + w * LANES);
#pragma GCC unroll 3
        for (int w = 0; w < W; ++w) {
            Lanes x[M], total = load(totals + w * LANES);
            for (int m = 0; m < M; ++m) x[m] = sums[m][w];
            powers_of_2(x);
            for (int m = 0; m < M; ++m) {
                store(to + m * stride + w * LANES, x[m]);
                total += x[m];
            }
            store(totals + w * LANES, total);
        }
    }
};

struct Add {  // C += alpha A B
    float* c;
    long c_row;
    float alpha = 1.0f;
    // C is weights, too many for the near caches: it can come while the sums are made.
    template <int M>
    void prepare(long row, long at) const {
        for (int m = 0; m < M; ++m) __builtin_prefetch(c + (row + m) * c_row + at, 1);
        for (int m = 0; m < M; ++m) __builtin_prefetch(c + (row + m) * c_row + at + LINE, 1);
    }
    template <int M, int W>
    void operator()(const Lanes (&sums)[M][W], long row, long at, long width) const {
        float* to = c + row * c_row + at;
        if (width >= W * LANES) {  // asked once, because asking for each vector takes time
            for (int m = 0; m < M; ++m)
                for (int w = 0; w < W; ++w) {
                    float* here = to + m * c_row + w * LANES;
                    store(here, load(here) + sums[m][w] * alpha);
                }
        } else {
            float parts[M * W * LANES];
            for (int m = 0; m < M; ++m)
                for (int w = 0; w < W; ++w) store(parts + (m * W + w) * LANES, sums[m][w]);
            for (int m = 0; m < M; ++m)
                for (long i = 0; i < width; ++i)
                    to[m * c_row + i] += parts[m * W * LANES + i] * alpha;
        }
    }
};

// Memory that the next tile needs: every block of this one fetches some lines of it.
struct Ahead {
    const float* next;
    void fetch() {
        for (int i = 0; i < LINES; ++i) __builtin_prefetch(next + i * LINE);
        next += LINES * LINE;
    }
};

struct AddAhead : Add {  // the same, where C itself was fetched before
    Ahead *words, *exponentials;
    template <int M>
    void prepare(long, long) const {
        words->fetch();
        if (exponentials) exponentials->fetch();
    }
};

}  // namespace
