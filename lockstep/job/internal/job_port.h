#pragma once

#include <cstdint>

/// Ports that all processes of a job compute without communication.
namespace lockstep::inline internal {

/// A port for each number, from 15000 to 28999: below the ports that systems assign (from 32768)
/// and launchers use (29400, 29500).
constexpr int port_of_number(std::uint64_t number) {
  constexpr std::uint64_t kFirstPort = 15000;
  constexpr std::uint64_t kPorts = 14000;
  return static_cast<int>(kFirstPort + number % kPorts);
}

/// Port of a step of a Slurm job; steps of one job have different ports.
constexpr int port_of_step(std::uint64_t job, std::uint64_t step) {
  constexpr std::uint64_t kBetweenSteps = 1009;  // a prime, so that few of other jobs have the same
  return port_of_number(job + kBetweenSteps * step);
}

}  // namespace lockstep::inline internal
