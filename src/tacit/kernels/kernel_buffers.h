// What a step works on: its sizes, the parameters within the flat vector, and the buffers.

#pragma once

#include "kernel_products.h"

extern "C" struct TacitShape {
    int64_t kind, vocab_size, embedding_size, cells, output_bias, rows, steps, examples;
    int64_t largest_softmax;  // exponentials that are kept; more are computed twice
    int64_t trained;          // the parts that change, as a sum of `Part`s
};

namespace {

constexpr long TILE = 96;    // rows of the embedding at a time
constexpr long CHUNK = 320;  // positions at a time

enum Kind { LSTM, CIFG, GRU };

enum Part {
    WORDS = 1,
    WORD_BIASES = 2,
    KERNEL = 4,
    BIAS = 8,
    PROJECTION = 16,
    PROJECTION_BIAS = 32
};

// Hands out parts of the caller's memory; without any it only counts.
struct Arena {
    float* base;
    int64_t used;
    float* take(int64_t n) {
        float* here = base ? base + used : nullptr;
        used += (n + 15) / 16 * 16 + 16;
        return here;
    }
};

struct Buffers {
    // Sizes, and their paddings to whole vectors.
    Kind kind;
    long V, E, C, B, T, N, n, gates, Ep, Cp, ld_entering, ld_gates, ld_hidden, trained;
    bool keeps, shifted = false, any_shifted = false;
    // Parameters.
    float *embedding, *output_bias, *kernel, *bias, *projection, *projection_bias;
    // Buffers.
    float *entering, *sums, *cells, *squashed, *d_hidden, *carried, *reset_hidden, *d_reset;
    float *hidden, *outputs, *scaled, *d_outputs, *d_scored, *d_inputs, *factor, *Z, *shifts;
    float *turned, *d_turned, *d_gate, *P, *old_words, *old_biases;
    Panels from_input, from_hidden, from_reset, to_input, to_hidden, to_reset, project, unproject;

    Buffers(const TacitShape& s, float* theta, Arena& arena) {
        kind = Kind(s.kind);
        V = s.vocab_size, E = s.embedding_size, C = s.cells, n = s.examples;
        B = s.rows, T = s.steps, N = B * T, trained = s.trained;
        gates = kind == LSTM ? 4 : 3, Ep = padded(E), Cp = padded(C);
        ld_entering = stride(E + Cp), ld_gates = stride(gates * Cp), ld_hidden = stride(Cp);
        keeps = int64_t(V) * padded(n) <= s.largest_softmax;

        embedding = theta;
        output_bias = s.output_bias ? embedding + V * E : nullptr;
        kernel = embedding + V * E + (s.output_bias ? V : 0);
        bias = kernel + gates * C * (E + C);
        projection = bias + gates * C;
        projection_bias = projection + E * C;

        // Row (t, b) is what enters step t: the word's vector, then the hidden vector before it.
        entering = arena.take((N + B) * ld_entering);
        sums = arena.take(N * ld_gates);
        cells = arena.take((N + B) * ld_hidden);
        squashed = arena.take(N * ld_hidden);
        d_hidden = arena.take(N * ld_hidden);
        carried = arena.take(B * ld_hidden);
        reset_hidden = arena.take(kind == GRU ? N * ld_hidden : 0);
        d_reset = arena.take(B * ld_hidden);
        hidden = arena.take(n * ld_hidden);
        outputs = arena.take(n * Ep);
        scaled = arena.take(n * Ep);
        d_outputs = arena.take(n * Ep);
        d_scored = arena.take(n * ld_hidden);
        d_inputs = arena.take(N * Ep);
        factor = arena.take(padded(n));
        Z = arena.take(padded(n));
        shifts = arena.take(padded(n));
        turned = arena.take(E * padded(n));
        d_turned = arena.take(E * chunk_width());
        d_gate = arena.take(C * stride(N));
        P = arena.take(keeps ? V * padded(n) : TILE * chunk_width());
        old_words = arena.take(TILE * E);
        old_biases = arena.take(TILE);
        const long first = kind == GRU ? 2 * Cp : gates * Cp, rest = gates * Cp - first;
        from_input = panels(arena, E, gates * Cp), to_input = panels(arena, gates * Cp, Ep);
        from_hidden = panels(arena, C, first), to_hidden = panels(arena, first, Cp);
        from_reset = panels(arena, C, rest), to_reset = panels(arena, rest, Cp);
        project = panels(arena, C, Ep), unproject = panels(arena, E, Cp);
    }

    static Panels panels(Arena& arena, long terms, long columns) {
        Panels made{nullptr, terms, columns};
        made.data = arena.take(made.count() * terms * PANEL);
        return made;
    }
    bool trains(long parts) const { return (trained & parts) != 0; }
    long chunk_width() const { return padded(smaller(n, CHUNK)); }

    // The kernel's row of gate value j, in the padded order of the gates; null in the padding.
    const float* kernel_row(long j) const {
        return j % Cp < C ? kernel + (j / Cp * C + j % Cp) * (E + C) : nullptr;
    }

    void pack_weights() {
        const long shift = from_hidden.columns;
        auto offset = [](const float* p, long by) { return p ? p + by : nullptr; };
        pack(from_input, to_input, [&](long j) { return kernel_row(j); });
        pack(from_hidden, to_hidden, [&](long j) { return offset(kernel_row(j), E); });
        pack(from_reset, to_reset, [&](long j) { return offset(kernel_row(j + shift), E); });
        pack(project, unproject, [&](long e) { return e < E ? projection + e * C : nullptr; });
    }

    float* entering_at(long t) const { return entering + t * B * ld_entering; }
    float* hidden_at(long t) const { return entering_at(t) + E; }
    float* sums_at(long t) const { return sums + t * B * ld_gates; }
    float* at(float* buffer, long t) const { return buffer + t * B * ld_hidden; }
};

}  // namespace
