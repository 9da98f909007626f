#include "lockstep/recovery/internal/step_seed.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace lockstep::inline internal {
namespace {

// SplitMix64's mixing function: Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

}  // namespace

void seed_step(std::uint64_t seed, int rank, std::int64_t step, c10::Device device) {
  const std::uint64_t mixed =
      mix(mix(mix(seed) + static_cast<std::uint64_t>(rank)) + static_cast<std::uint64_t>(step));
  if (!device.is_cpu()) {
    at::manual_seed(mixed);  // All generators.
    return;
  }
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(mixed);
}

}  // namespace lockstep::inline internal
