#pragma once

#include <cstdint>

/// Ports that the processes of a job find without telling each other.
namespace lockstep::inline internal {

/// One for each number, from 15000 to 28999: below those that systems give out by themselves (32768
/// on) and launchers use (29400, 29500).
constexpr int port_of_number(std::uint64_t number) {
  constexpr std::uint64_t kFirstPort = 15000;
  constexpr std::uint64_t kPorts = 14000;
  return static_cast<int>(kFirstPort + number % kPorts);
}

/// Of a step of a job of Slurm's: steps of one job have ports apart.
constexpr int port_of_step(std::uint64_t job, std::uint64_t step) {
  constexpr std::uint64_t kBetweenSteps = 1009;  // a prime, so that few of other jobs have the same
  return port_of_number(job + kBetweenSteps * step);
}

}  // namespace lockstep::inline internal
