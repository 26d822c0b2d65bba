// The gated layers, forward and backward.

#pragma once

#include "kernel_buffers.h"

namespace {

struct Layer : Buffers {
    using Buffers::Buffers;

    void forward(const int64_t* inputs) {
        for (long i = 0; i < N; ++i) {
            std::memcpy(entering + i * ld_entering, embedding + inputs[i] * E, E * sizeof(float));
            float* row = sums + i * ld_gates;
            for (long g = 0; g < gates; ++g) {
                std::memcpy(row + g * Cp, bias + g * C, C * sizeof(float));
                for (long c = C; c < Cp; ++c) row[g * Cp + c] = 0.0f;
            }
        }
        for (long b = 0; b < B; ++b) {
            for (long c = 0; c < Cp; ++c) hidden_at(0)[b * ld_entering + c] = 0.0f;
            for (long c = 0; c < Cp; ++c) cells[b * ld_hidden + c] = 0.0f;
        }
        product(N, entering, ld_entering, from_input, Add{sums, ld_gates});
        for (long t = 0; t < T; ++t) {
            if (t > 0)
                product(B, hidden_at(t), ld_entering, from_hidden, Add{sums_at(t), ld_gates});
            kind == GRU ? forward_gru(t) : forward_cells(t);
        }
    }

    void forward_cells(long t) {
        const long candidate = (gates - 1) * Cp, output = candidate - Cp, forget = output - Cp;
        for (long b = 0; b < B; ++b) {
            float* gate = sums_at(t) + b * ld_gates;
            for (long c = 0; c < Cp; c += LANES) {
                Lanes f = sigmoid(load(gate + forget + c)), o = sigmoid(load(gate + output + c));
                Lanes g = tanh_of(load(gate + candidate + c)), i;
                if (kind == LSTM) {
                    i = sigmoid(load(gate + c));
                    store(gate + c, i);
                } else {
                    i = 1.0f - f;
                }
                Lanes memory = f * load(at(cells, t) + b * ld_hidden + c) + i * g;
                Lanes squash = tanh_of(memory);
                store(gate + forget + c, f);
                store(gate + output + c, o);
                store(gate + candidate + c, g);
                store(at(cells, t + 1) + b * ld_hidden + c, memory);
                store(at(squashed, t) + b * ld_hidden + c, squash);
                store(hidden_at(t + 1) + b * ld_entering + c, o * squash);
            }
        }
    }

    void forward_gru(long t) {
        for (long b = 0; b < B; ++b) {
            float* gate = sums_at(t) + b * ld_gates;
            for (long c = 0; c < Cp; c += LANES) {
                Lanes r = sigmoid(load(gate + c)), z = sigmoid(load(gate + Cp + c));
                store(gate + c, r);
                store(gate + Cp + c, z);
                store(at(reset_hidden, t) + b * ld_hidden + c,
                      r * load(hidden_at(t) + b * ld_entering + c));
            }
        }
        if (t > 0)
            product(B, at(reset_hidden, t), ld_hidden, from_reset,
                    Add{sums_at(t) + 2 * Cp, ld_gates});
        for (long b = 0; b < B; ++b) {
            float* gate = sums_at(t) + b * ld_gates;
            for (long c = 0; c < Cp; c += LANES) {
                Lanes z = load(gate + Cp + c), candidate = tanh_of(load(gate + 2 * Cp + c));
                Lanes h = load(hidden_at(t) + b * ld_entering + c);
                store(gate + 2 * Cp + c, candidate);
                store(hidden_at(t + 1) + b * ld_entering + c, candidate + z * (h - candidate));
            }
        }
    }

    // On the way back the gates' values give way to the derivatives by their sums.
    void backward(const int64_t* places) {
        if (!trains(WORDS | KERNEL | BIAS)) return;
        std::memset(d_scored, 0, n * ld_hidden * sizeof(float));
        product(n, d_outputs, Ep, unproject, Add{d_scored, ld_hidden});
        if (places) std::memset(d_hidden, 0, N * ld_hidden * sizeof(float));
        for (long i = 0; i < n; ++i)
            std::memcpy(d_hidden + (places ? places[i] : i) * ld_hidden, d_scored + i * ld_hidden,
                        Cp * sizeof(float));
        std::memset(carried, 0, B * ld_hidden * sizeof(float));
        for (long t = T - 1; t >= 0; --t) {
            if (t + 1 < T)
                product(B, sums_at(t + 1), ld_gates, to_hidden, Add{at(d_hidden, t), ld_hidden});
            kind == GRU ? backward_gru(t) : backward_cells(t);
        }
        if (!trains(WORDS)) return;
        std::memset(d_inputs, 0, N * Ep * sizeof(float));
        product(N, sums, ld_gates, to_input, Add{d_inputs, Ep});
    }

    void backward_cells(long t) {
        const long candidate = (gates - 1) * Cp, output = candidate - Cp, forget = output - Cp;
        for (long b = 0; b < B; ++b) {
            float* gate = sums_at(t) + b * ld_gates;
            for (long c = 0; c < Cp; c += LANES) {
                const long here = b * ld_hidden + c;
                Lanes f = load(gate + forget + c), o = load(gate + output + c);
                Lanes g = load(gate + candidate + c), s = load(at(squashed, t) + here);
                Lanes before = load(at(cells, t) + here), dh = load(at(d_hidden, t) + here);
                Lanes dc = load(carried + here) + dh * o * (1.0f - s * s);
                store(gate + output + c, dh * s * o * (1.0f - o));
                if (kind == LSTM) {
                    Lanes i = load(gate + c);
                    store(gate + c, dc * g * i * (1.0f - i));
                    store(gate + forget + c, dc * before * f * (1.0f - f));
                    store(gate + candidate + c, dc * i * (1.0f - g * g));
                } else {
                    store(gate + forget + c, dc * (before - g) * f * (1.0f - f));
                    store(gate + candidate + c, dc * (1.0f - f) * (1.0f - g * g));
                }
                store(carried + here, dc * f);
            }
        }
    }

    void backward_gru(long t) {
        for (long b = 0; b < B; ++b) {
            float* gate = sums_at(t) + b * ld_gates;
            for (long c = 0; c < Cp; c += LANES) {
                const long here = b * ld_hidden + c;
                Lanes z = load(gate + Cp + c), candidate = load(gate + 2 * Cp + c);
                Lanes h = load(hidden_at(t) + b * ld_entering + c);
                Lanes dh = load(at(d_hidden, t) + here) + load(carried + here);
                store(carried + here, dh * z);
                store(gate + Cp + c, dh * (h - candidate) * z * (1.0f - z));
                store(gate + 2 * Cp + c, dh * (1.0f - z) * (1.0f - candidate * candidate));
            }
        }
        std::memset(d_reset, 0, B * ld_hidden * sizeof(float));
        product(B, sums_at(t) + 2 * Cp, ld_gates, to_reset, Add{d_reset, ld_hidden});
        for (long b = 0; b < B; ++b) {
            float* gate = sums_at(t) + b * ld_gates;
            for (long c = 0; c < Cp; c += LANES) {
                const long here = b * ld_hidden + c;
                Lanes r = load(gate + c), d = load(d_reset + here);
                Lanes h = load(hidden_at(t) + b * ld_entering + c);
                store(carried + here, load(carried + here) + d * r);
                store(gate + c, d * h * r * (1.0f - r));
            }
        }
    }
};

}  // namespace
