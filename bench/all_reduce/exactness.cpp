#include "bench/all_reduce/exactness.h"

#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::bench {
namespace {

// A prime, so that no size of a chunk is its multiple; small enough that the sum over a thousand
// ranks is exact in float32.
constexpr std::size_t kPeriod = 997;

float value_of(std::size_t index, int rank) {
  return static_cast<float>((index * 31 + static_cast<std::size_t>(rank) * 17) % kPeriod);
}

}  // namespace

void check_sums(const Control& control, SubjectCall& call, std::int64_t bytes) {
  call.set_bytes(bytes);
  const std::span<float> values = call.values();
  std::array<float, kPeriod> sums{};
  for (std::size_t index = 0; index < kPeriod; ++index) {
    for (int rank = 0; rank < control.ranks(); ++rank) sums[index] += value_of(index, rank);
  }
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(i % kPeriod, control.rank());
  control.barrier();
  call.call();
  control.barrier();  // for calls that do not wait for other ranks
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == sums[i % kPeriod]) continue;
    throw CommError(concat("bench: all-reduce of ", bytes, " bytes over ", call.subject().name,
                           " (", call.subject().memory, " memory) on rank ", control.rank(),
                           ": element ", i, " is ", values[i], ", not ", sums[i % kPeriod],
                           "; the backend sums wrongly, please report this"));
  }
  // Zeros stay what they are, however often they are summed.
  for (float& value : values) value = 0;
  control.barrier();
}

}  // namespace lockstep::bench
