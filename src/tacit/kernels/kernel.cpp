// One step of SGD on a recurrent language model with tied embeddings.
//
// The mathematics is that of torch_step.py and gated_steps.py; what differs is how it is laid out.
// The softmax goes through the embedding in tiles of rows, and of each tile it makes the logits,
// their exponentials and what they give to the gradient of the output vectors while all of them
// are in the cache.
//
// Every buffer is written before it is read, so a step depends on its arguments alone.

#include "kernel_layer.h"

namespace {

// As in torch_step.py and parameters.py: within these bounds float32 has lost nothing.
constexpr float SMALLEST_SUM = 1e-25f, LARGEST_SUM = 1e30f;
constexpr float SMALLEST_SQUARE = 1e-30f, LARGEST_SQUARE = 1e30f;

struct Step : Layer {
    using Layer::Layer;

    // ---- the softmax ----

    // What depends on the softmax, but for the embedding's gradient; returns the summed loss.
    double score(const int64_t* targets, const int64_t* places) {
        for (long i = 0; i < n; ++i) {
            const float* from = hidden_at(1) + (places ? places[i] : i) * ld_entering;
            for (long c = 0; c < Cp; c += LANES) store(hidden + i * ld_hidden + c, load(from + c));
            for (long e = 0; e < Ep; ++e) outputs[i * Ep + e] = e < E ? projection_bias[e] : 0.0f;
        }
        product(n, hidden, ld_hidden, project, Add{outputs, Ep});
        double loss = 0.0;
        for (long first = 0; first < n; first += CHUNK) {
            const long count = smaller(CHUNK, n - first), width = padded(count);
            turn(first, count, width);
            float* kept = keeps ? P + V * first : P;
            shifted = false;
            for (long i = 0; i < width; ++i) shifts[first + i] = factor[first + i] = 0.0f;
            sum_exponentials(kept, first, width);
            bool strange = false;
            for (long i = 0; i < count; ++i)  // written so that NaN is out of range
                strange |= !(Z[first + i] > SMALLEST_SUM && Z[first + i] < LARGEST_SUM);
            if (strange) {
                shifted = any_shifted = true;
                find_largest(kept, first, width);
                sum_exponentials(kept, first, width);
            }
            for (long i = 0; i < count; ++i) loss += turn_back(first, i, width, targets[first + i]);
        }
        return loss;
    }

    void turn(long first, long count, long width) {
        auto output = [&](long i) { return i < count ? outputs + (first + i) * Ep : nullptr; };
        transpose(output, width, E, turned + E * first, width);
        for (long i = 0; i < E * width; ++i) turned[E * first + i] *= LOG2_E;  // e^x = 2^(x log2 e)
    }

    // One position's loss; its derivative by the output vector, and that vector over n Z.
    double turn_back(long first, long i, long width, int64_t target) {
        const long at = first + i;
        const float* word = embedding + target * E;
        const float *output = outputs + at * Ep, share = 1.0f / n;
        double logit = output_bias ? output_bias[target] : 0.0;
        for (long e = 0; e < E; ++e) logit += double(output[e]) * word[e];
        factor[at] = 1.0f / (Z[at] * n);
        for (long e = 0; e < Ep; ++e) {
            scaled[at * Ep + e] = output[e] * factor[at];
            d_outputs[at * Ep + e] =
                e < E ? d_turned[e * width + i] * factor[at] - word[e] * share : 0.0f;
        }
        return std::log(double(Z[at])) + shifts[at] * LN_2 - logit;
    }

    const float* biases_at(long row) const { return output_bias ? output_bias + row : nullptr; }

    void exponentials(float* tile, const float* words, const float* biases, long rows, long first,
                      long width, float* sum) {
        product(rows, width, E, words, E, 1, turned + E * first, width,
                Exponentials{tile, width, biases, shifted ? shifts + first : nullptr, sum});
    }

    void sum_exponentials(float* kept, long first, long width) {
        float sum[CHUNK];
        for (long i = 0; i < width; ++i) Z[first + i] = 0.0f;
        for (long i = 0; i < E * width; ++i) d_turned[i] = 0.0f;
        for (long row = 0; row < V; row += TILE) {
            const long rows = smaller(TILE, V - row);
            float* tile = keeps ? kept + row * width : kept;
            for (long i = 0; i < width; ++i) sum[i] = 0.0f;
            exponentials(tile, embedding + row * E, biases_at(row), rows, first, width, sum);
            for (long i = 0; i < width; ++i) Z[first + i] += sum[i];
            Ahead words{embedding + (row + TILE) * E};
            product(E, width, rows, embedding + row * E, 1, E, tile, width,
                    AddAhead{{d_turned, width}, &words, nullptr});
        }
    }

    void find_largest(float* kept, long first, long width) {
        for (long i = 0; i < width; ++i) shifts[first + i] = -INFINITY;
        for (long row = 0; row < V; row += TILE) {
            const long rows = smaller(TILE, V - row);
            float* tile = keeps ? kept + row * width : kept;
            product(rows, width, E, embedding + row * E, E, 1, turned + E * first, width,
                    Set{tile, width});
            for (long r = 0; r < rows; ++r)
                for (long i = 0; i < width; ++i) {
                    float logit = tile[r * width + i];
                    if (output_bias) logit += output_bias[row + r] * LOG2_E;
                    if (!(logit <= shifts[first + i])) shifts[first + i] = logit;
                }
        }
    }

    // ---- the parameters change ----

    static void pull_back(float* values, const float* towards, int64_t count, float pull) {
        if (pull != 0.0f)
            for (int64_t i = 0; i < count; ++i) values[i] += pull * (towards[i] - values[i]);
    }

    static void add(float* to, const float* values, long count, float alpha) {
        for (long i = 0; i < count; ++i) to[i] += alpha * values[i];
    }

    // A part's pull towards its anchor, which is laid out as theta is.
    void pull_part(Part part, float* values, long count, const float* anchor, float pull) {
        if (trains(part)) pull_back(values, anchor + (values - embedding), count, pull);
    }

    void pull_layer(const float* anchor, float pull) {
        pull_part(KERNEL, kernel, bias - kernel, anchor, pull);
        pull_part(BIAS, bias, projection - bias, anchor, pull);
        pull_part(PROJECTION, projection, projection_bias - projection, anchor, pull);
        pull_part(PROJECTION_BIAS, projection_bias, E, anchor, pull);
    }

    void pull_words(long row, long rows, const float* anchor, float pull) {
        pull_part(WORDS, embedding + row * E, rows * E, anchor, pull);
        if (output_bias) pull_part(WORD_BIASES, output_bias + row, rows, anchor, pull);
    }

    void descend_kernel(long g, const float* d, float eta) {
        float* rows = kernel + g * C * (E + C);
        // Turned, so that the terms of a row are neighbours rather than pages apart.
        const long ld = stride(N);
        transpose([&](long i) { return d + i * ld_gates; }, N, C, d_gate, ld);
        if (kind == GRU && g == 2) {
            add_product(C, E, N, d_gate, ld, 1, entering, ld_entering, rows, E + C, -eta);
            add_product(C, C, N, d_gate, ld, 1, reset_hidden, ld_hidden, rows + E, E + C, -eta);
        } else {
            add_product(C, E + C, N, d_gate, ld, 1, entering, ld_entering, rows, E + C, -eta);
        }
    }

    void descend_layer(float eta) {
        for (long g = 0; g < gates; ++g) {
            const float* d = sums + g * Cp;
            if (trains(KERNEL)) descend_kernel(g, d, eta);
            if (!trains(BIAS)) continue;
            float* total = carried;  // its use is over
            for (long c = 0; c < C; ++c) total[c] = 0.0f;
            for (long i = 0; i < N; ++i) add(total, d + i * ld_gates, C, 1.0f);
            add(bias + g * C, total, C, -eta);
        }
        if (trains(PROJECTION))
            add_product(E, C, n, d_outputs, 1, Ep, hidden, ld_hidden, projection, C, -eta);
        if (!trains(PROJECTION_BIAS)) return;
        float* total = d_turned;  // the same
        for (long e = 0; e < E; ++e) total[e] = 0.0f;
        for (long i = 0; i < n; ++i) add(total, d_outputs + i * Ep, E, 1.0f);
        add(projection_bias, total, E, -eta);
    }

    void descend_words(const int64_t* inputs, const float* rates, float eta) {
        if (!trains(WORDS)) return;
        for (long i = 0; i < N; ++i)
            add(embedding + inputs[i] * E, d_inputs + i * Ep, E,
                rates ? -eta * rates[inputs[i]] : -eta);
    }

    // The tile's rows less eta times what the softmax gives them.
    void descend_tile(long row, long rows, const int64_t* targets, const float* rates, float eta,
                      float pull, const float* anchor) {
        const float *words = embedding + row * E, *biases = biases_at(row);
        if (!keeps) {  // P comes again from the rows as they were
            std::memcpy(old_words, words, rows * E * sizeof(float));
            words = old_words;
            if (biases) {
                std::memcpy(old_biases, biases, rows * sizeof(float));
                biases = old_biases;
            }
            pull_words(row, rows, anchor, pull);
        }
        for (long first = 0; first < n; first += CHUNK) {
            const long count = smaller(CHUNK, n - first), width = padded(count);
            float *tile = keeps ? P + V * first + row * width : P, unused[CHUNK] = {};
            shifted = any_shifted;
            if (!keeps)
                exponentials(tile, words, biases, rows, first, width, unused);
            for (long i = 0; i < count; ++i) {
                const long target = targets[first + i] - row;
                if (target >= 0 && target < rows) tile[target * width + i] -= Z[first + i];
            }
            if (rates)
                for (long r = 0; r < rows; ++r)
                    for (long i = 0; i < width; ++i) tile[r * width + i] *= rates[row + r];
            Ahead next_words{embedding + (row + TILE) * E}, next_tile{tile + TILE * width};
            if (trains(WORDS))
                product(rows, E, count, tile, width, 1, scaled + first * Ep, Ep,
                        AddAhead{{embedding + row * E, E, -eta}, &next_words, &next_tile});
            if (output_bias && trains(WORD_BIASES))
                for (long r = 0; r < rows; ++r) {
                    Lanes sum = {};
                    for (long i = 0; i < width; i += LANES)
                        sum += load(tile + r * width + i) * load(factor + first + i);
                    for (long i = 0; i < LANES; ++i) output_bias[row + r] -= eta * sum[i];
                }
        }
    }

    // Rows to unit norm; a row of zeros stays.  Not inlined, for the sake of the registers.
    __attribute__((noinline)) void normalise(long row, long rows) {
        for (long end = row + rows; row < end; row += LANES) {
            const long count = smaller(LANES, end - row);
            float* words = embedding + row * E;
            float inverse[LANES];
            Lanes squares[LANES] = {};
            for (long r = 0; r < count; ++r) {
                const float* w = words + r * E;
                Lanes total = {};
                long e = 0;
#pragma GCC unroll 4
                for (; e + LANES <= E; e += LANES) total += load(w + e) * load(w + e);
                if (e < E) {
                    const Lanes rest = load_part(w + e, E - e);
                    total += rest * rest;
                }
                squares[r] = total;
            }
            store(inverse, row_sums(squares));
            bool strange = false;
            for (long r = 0; r < count; ++r)
                strange |= !(inverse[r] > SMALLEST_SQUARE && inverse[r] < LARGEST_SQUARE);
            for (long r = 0; r < LANES; ++r) inverse[r] = 1.0f / std::sqrt(inverse[r]);
            for (long r = 0; r < count; ++r) {
                float* w = words + r * E;
                const float by = strange ? exact_inverse_norm(w) : inverse[r];
                long e = 0;
#pragma GCC unroll 4
                for (; e + LANES <= E; e += LANES) store(w + e, load(w + e) * by);
                for (; e < E; ++e) w[e] *= by;
            }
        }
    }

    float exact_inverse_norm(const float* word) const {
        double square = 0.0;
        for (long e = 0; e < E; ++e) square += double(word[e]) * word[e];
        return square == 0.0 ? 1.0f : float(1.0 / std::sqrt(square));
    }

    void descend(const int64_t* inputs, const int64_t* targets, const float* rates, float eta,
                 float pull, const float* anchor, bool project_words) {
        pull_layer(anchor, pull);
        descend_layer(eta);
        if (!trains(WORDS | WORD_BIASES)) return;
        // Words that occur change first where that is possible, so that one pass does the rest.
        if (keeps) {
            pull_words(0, V, anchor, pull);
            descend_words(inputs, rates, eta);
        }
        for (long row = 0; row < V; row += TILE) {
            descend_tile(row, smaller(TILE, V - row), targets, rates, eta, pull, anchor);
            if (keeps && project_words) normalise(row, smaller(TILE, V - row));
        }
        if (!keeps) {
            descend_words(inputs, rates, eta);
            if (project_words) normalise(0, V);
        }
    }
};

// Denormal numbers cost a hundred cycles each and stand for nothing here.
struct FlushDenormals {
#if defined(__x86_64__)
    unsigned before = __builtin_ia32_stmxcsr();
    FlushDenormals() { __builtin_ia32_ldmxcsr(before | 0x8040); }
    ~FlushDenormals() { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
    uint64_t before;
    FlushDenormals() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(before));
        __asm__ volatile("msr fpcr, %0" : : "r"(before | (uint64_t(1) << 24)));
    }
    ~FlushDenormals() { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#endif
};

}  // namespace

// How many floats `tacit_step` needs to work in.
extern "C" int64_t tacit_workspace(const TacitShape* shape) {
    Arena arena{nullptr, 0};
    Step(*shape, nullptr, arena);
    return arena.used;
}

// theta <- theta - eta (gradient of the mean loss) - pull (theta - anchor); returns the loss's sum.
// Inputs are [steps, rows]; targets are those that count, at `places` of the inputs, or everywhere
// if that is null.  Tokens and places were checked by the caller.  Only trained parts change.
// `rates`, unless null, multiply the step of each word's vector and bias.
extern "C" double tacit_step(const TacitShape* shape, float* theta, const float* anchor,
                             const int64_t* inputs, const int64_t* targets, const int64_t* places,
                             const float* rates, float eta, float pull, int64_t project,
                             float* workspace) {
    FlushDenormals guard;
    Arena arena{workspace, 0};
    Step step(*shape, theta, arena);
    step.pack_weights();
    step.forward(inputs);
    const double loss = step.score(targets, places);
    step.backward(places);
    step.descend(inputs, targets, rates, eta, pull, anchor, project != 0);
    return loss;
}
