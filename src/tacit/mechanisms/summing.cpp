// The fast form of tacit.mechanisms.summing, with the bits of the NumPy form beside it: products and
// sums of IEEE doubles in the same order, each rounded by itself (no fused operations).

#include <cstdint>

namespace {

constexpr int64_t COLUMNS = 1024;
constexpr int64_t BLOCK = 64;  // values that are skipped together if all are zero

template <typename Value>
double sum_of_squares(const Value* values, int64_t n) {
    double sums[COLUMNS] = {};
    for (int64_t first = 0; first < n; first += COLUMNS) {
        const int64_t width = n - first < COLUMNS ? n - first : COLUMNS;
        for (int64_t i = 0; i < width; ++i) {
            const double value = values[first + i];
            sums[i] += value * value;
        }
    }
    for (int64_t half = COLUMNS / 2; half; half /= 2)
        for (int64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    return sums[0];
}

template <typename Value>
bool any(const Value* values, int64_t n) {
    bool found = false;
    for (int64_t i = 0; i < n; ++i) found |= values[i] != 0;
    return found;
}

template <typename Value>
void add(int64_t* total, const Value* values, int64_t n, double scale, double factor) {
    for (int64_t i = 0; i < n; ++i) {
        const double scaled = values[i] * scale;
        total[i] += static_cast<int64_t>(scaled * factor);
    }
}

template <typename Value>
void add_blocks(int64_t* total, const Value* values, int64_t n, double scale, double factor) {
    int64_t first = 0;
    for (; first + BLOCK <= n; first += BLOCK)
        if (any(values + first, BLOCK)) add(total + first, values + first, BLOCK, scale, factor);
    add(total + first, values + first, n - first, scale, factor);
}

}  // namespace

extern "C" double tacit_square_float32(const float* values, int64_t n) {
    return sum_of_squares(values, n);
}

extern "C" double tacit_square_float64(const double* values, int64_t n) {
    return sum_of_squares(values, n);
}

extern "C" void tacit_add_float32(int64_t* total, const float* values, int64_t n, double scale,
                                  double factor) {
    add_blocks(total, values, n, scale, factor);
}

extern "C" void tacit_add_float64(int64_t* total, const double* values, int64_t n, double scale,
                                  double factor) {
    add_blocks(total, values, n, scale, factor);
}
