// The fast form of tacit.privacy.quantile, with the bits of the NumPy form beside it: sums and
// products of IEEE doubles in the same order, each rounded by itself (no fused operations).

#include <cstdint>
#include <cstring>

namespace {

constexpr int kCoefficients = 8;
constexpr int kSegmentBits = 5;
constexpr int kRest = 52 - kSegmentBits;  // bits of the mantissa behind the segment's number
constexpr uint64_t kMagnitude = (uint64_t{1} << 63) - 1;
constexpr uint64_t kDeep = uint64_t{1} << 53;
constexpr uint64_t kMantissa = (uint64_t{1} << 52) - 1;
constexpr uint64_t kOne = uint64_t{1023} << 52;
constexpr uint64_t kFirstRow = uint64_t{1023 + 53} << kSegmentBits;

double from_bits(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace

// Words become normal values in their place, but for deep ones: these stay as they are, and their
// places are written to `deep`, which has room for n.  Returns how many they are.
extern "C" int64_t tacit_quantiles(uint64_t* words, int64_t n, const double* table, int64_t* deep) {
  int64_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t word = words[i], magnitude = word & kMagnitude;
    deep[found] = i;
    if (magnitude < kDeep) {
      ++found;
      continue;
    }
    const uint64_t bits = bits_of(static_cast<double>(static_cast<int64_t>(magnitude)));
    const double* row = table + ((bits >> kRest) - kFirstRow) * kCoefficients;
    const uint64_t mantissa = bits & kMantissa;
    const uint64_t middle = (mantissa >> kRest << kRest) | uint64_t{1} << (kRest - 1);
    const double x = from_bits(kOne | mantissa) - from_bits(kOne | middle);
    double value = row[kCoefficients - 1];
    for (int k = kCoefficients - 2; k >= 0; --k) value = value * x + row[k];
    words[i] = bits_of(value) ^ (word & ~kMagnitude);
  }
  return found;
}
