// Reads one case a line, "size replicas rank shuffle seed epoch drop_last", and prints the indices
// that the sampler gives, a line a case.
#include <cstdint>
#include <iostream>

#include "lockstep/data/distributed_sampler.h"
#include "lockstep/program/run_main.h"

namespace sampler_indices {
namespace {

struct SamplerCase {
  std::size_t size;
  int replicas;
  int rank;
  bool shuffle;
  std::uint64_t seed;
  std::uint64_t epoch;
  bool drop_last;
};

std::istream& operator>>(std::istream& input, SamplerCase& c) {
  return input >> c.size >> c.replicas >> c.rank >> c.shuffle >> c.seed >> c.epoch >> c.drop_last;
}

}  // namespace

int run_worker(int /*argc*/, char** /*argv*/) {
  return lockstep::run_main([] {
    for (SamplerCase c{}; std::cin >> c;) {
      lockstep::DistributedSampler sampler(c.size, {.num_replicas = c.replicas,
                                                    .rank = c.rank,
                                                    .shuffle = c.shuffle,
                                                    .seed = c.seed,
                                                    .drop_last = c.drop_last});
      sampler.set_epoch(c.epoch);
      sampler.reset();
      while (const auto batch = sampler.next(7)) {
        for (const std::size_t index : *batch) std::cout << index << " ";
      }
      std::cout << "\n";
    }
    return 0;
  });
}

}  // namespace sampler_indices
