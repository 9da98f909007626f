#pragma once

#include <cstdint>
#include <string>

namespace lockstep::inline internal {

/// Who serves a rendezvous at a port of this machine: "agents of job 'train' of host (pid 42)";
/// empty where something else listens there, or nothing answers within a second.
std::string who_listens(const std::string& host, std::uint16_t port) noexcept;

}  // namespace lockstep::inline internal
