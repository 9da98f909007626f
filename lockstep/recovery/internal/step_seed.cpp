#include "lockstep/recovery/internal/step_seed.h"

#include <bit>
#include <cstring>
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

/// The generator wyrand of Wang Yi's wyhash, 64 bits a call.
class Wyrand {
 public:
  explicit Wyrand(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0xa0761d6478bd642fU;
    const Product product = static_cast<Product>(state_) * (state_ ^ 0xe7037ed1a0b428dbU);
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
  }

 private:
  __extension__ using Product = unsigned __int128;
  std::uint64_t state_;
};

// The generator's own seeding takes 32 bits of the seed, and computes each of the engine's 624
// words from the one before: 1.2 us. Words that do not wait for each other take 0.16 us, two stored
// at once.
void seed_cpu_generator(std::uint64_t seed) {
  // Made once: the engine's constructor seeds it.
  static thread_local at::mt19937 engine;
  static thread_local at::mt19937_data_pod data;
  data.seed_ = seed;
  data.left_ = 1;
  data.seeded_ = true;
  data.next_ = 0;
  static_assert(at::MERSENNE_STATE_N % 2 == 0);
  static_assert(std::endian::native == std::endian::little);  // The lower word comes first.
  Wyrand words(seed);
#pragma GCC unroll 4
  for (std::size_t i = 0; i < data.state_.size(); i += 2) {
    const std::uint64_t two = words.next();
    std::memcpy(&data.state_[i], &two, sizeof two);
  }
  engine.set_data(data);
  const at::Generator& generator = at::detail::getDefaultCPUGenerator();
  auto* const cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
  const std::lock_guard<std::mutex> lock(cpu->mutex_);
  cpu->set_engine(engine);
  cpu->set_next_float_normal_sample(std::nullopt);
  cpu->set_next_double_normal_sample(std::nullopt);
}

}  // namespace

void seed_step(std::uint64_t seed, int rank, std::int64_t step, c10::Device device) {
  const std::uint64_t mixed =
      mix(mix(mix(seed) + static_cast<std::uint64_t>(rank)) + static_cast<std::uint64_t>(step));
  if (!device.is_cpu()) at::manual_seed(mixed);  // Of all devices.
  seed_cpu_generator(mixed);
}

}  // namespace lockstep::inline internal
