#include "bench/memory_traffic.h"

namespace lockstep::bench {

[[gnu::target_clones("avx512f", "avx2", "default")]] void add_to(float* __restrict sum,
                                                                 const float* __restrict gradient,
                                                                 std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) sum[i] += gradient[i];
}

[[gnu::target_clones("avx512f", "avx2", "default")]] void touch(float* __restrict parameter,
                                                                const float* __restrict gradient,
                                                                float* __restrict state,
                                                                std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const float g = gradient[i];
    parameter[i] += g;
    state[i] += g;
  }
}

[[gnu::target_clones("avx512f", "avx2", "default")]] void touch(float* __restrict parameter,
                                                                const float* __restrict gradient,
                                                                float* __restrict first,
                                                                float* __restrict second,
                                                                std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const float g = gradient[i];
    parameter[i] += g;
    first[i] += g;
    second[i] += g;
  }
}

}  // namespace lockstep::bench
