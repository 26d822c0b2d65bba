// The fast form of tacit.kernels.scoring: how probable a target is and how many words stand before
// it, while its row of logits is in the cache.

#include "kernel_vectors.h"

#include <limits>

namespace {

constexpr int SUMS = 4;  // at once, because each waits for its own last result
constexpr long AT_ONCE = SUMS * LANES;
constexpr float NONE = -std::numeric_limits<float>::infinity();

// What a first look at some logits finds.
struct Look {
    float largest = NONE;
    int64_t before = 0;  // words that stand before the target
    bool broken = false;  // is any NaN?

    template <bool Ties>
    void at_one(float x, float target) {
        largest = x > largest ? x : largest;
        before += Ties ? x >= target : x > target;
        broken |= x != x;
    }

    // Of equal logits the smaller id comes first: with `Ties` they are counted, as they have to be
    // for the words whose ids are below the target's, and only for these.
    template <bool Ties>
    void at(const float* logits, long n, float target) {
        Lanes top[SUMS];
        Integers count[SUMS] = {}, nan[SUMS] = {};
        for (Lanes& each : top) each = all(NONE);
        const Lanes limit = all(target);
        long i = 0;
        for (; i + AT_ONCE <= n; i += AT_ONCE)
            for (int m = 0; m < SUMS; ++m) {
                const Lanes x = load(logits + i + m * LANES);
                top[m] = x > top[m] ? x : top[m];
                count[m] -= Ties ? x >= limit : x > limit;  // true is -1
                nan[m] |= x != x;
            }
        for (int m = 0; m < SUMS; ++m)
            for (long lane = 0; lane < LANES; ++lane) {
                largest = top[m][lane] > largest ? top[m][lane] : largest;
                before += count[m][lane];
                broken |= nan[m][lane] != 0;
            }
        for (; i < n; ++i) at_one<Ties>(logits[i], target);
    }
};

// The sum of e^(x - largest), which is at least 1 and at most n.
double sum_of_exponentials(const float* logits, long n, float largest) {
    const Lanes shift = all(largest);
    Lanes sums[SUMS] = {};
    long i = 0;
    for (; i + AT_ONCE <= n; i += AT_ONCE) {
        Lanes x[SUMS];
        for (int m = 0; m < SUMS; ++m) x[m] = (load(logits + i + m * LANES) - shift) * LOG2_E;
        powers_of_2(x);
        for (int m = 0; m < SUMS; ++m) sums[m] += x[m];
    }
    for (; i < n; i += LANES) {
        float rest[LANES];
        for (long lane = 0; lane < LANES; ++lane) rest[lane] = i + lane < n ? logits[i + lane] : NONE;
        sums[0] += power_of_2((load(rest) - shift) * LOG2_E);
    }
    double sum = 0;
    for (const Lanes& each : sums)
        for (long lane = 0; lane < LANES; ++lane) sum += each[lane];
    return sum;
}

}  // namespace

// The target's log-probability, its rank among all words but `never` (-1: none), and its rank among
// all words, for each row of logits; rows are `apart` values apart.  A row that makes no distribution
// predicts nothing: one with NaN, with +inf, or with nothing else than -inf.
extern "C" void tacit_score(const float* logits, int64_t rows, int64_t words, int64_t apart,
                            const int64_t* targets, int64_t never, double* log_probs,
                            int64_t* ranks, int64_t* ranks_of_all) {
    for (int64_t row = 0; row < rows; ++row, logits += apart) {
        const int64_t target = targets[row];
        const float own = logits[target];
        Look look;
        look.at<true>(logits, target, own);
        look.at_one<false>(own, own);
        look.at<false>(logits + target + 1, words - target - 1, own);
        if (look.broken || !std::isfinite(look.largest)) {
            log_probs[row] = NONE;
            ranks_of_all[row] = words - 1;
        } else {
            const double sum = sum_of_exponentials(logits, words, look.largest);
            log_probs[row] = static_cast<double>(own) - look.largest - std::log(sum);
            ranks_of_all[row] = look.before;
        }
        ranks[row] = ranks_of_all[row];
        if (never >= 0) {
            const float other = logits[never];
            ranks[row] -= other > own || (other == own && never < target);
        }
    }
}
