#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::differential {

/// Makes the plan of a seed that fails smaller for as long as it fails, each time in a job that
/// `lockstep` starts with `program`, so that it may hang or crash. Returns the numbers of the cuts.
/// Errors: UsageError where the seed passes, or `lockstep` starts no job.
std::vector<std::size_t> shrink(const std::string& lockstep, const std::string& program,
                                std::uint64_t seed, int ranks);

}  // namespace lockstep::differential
