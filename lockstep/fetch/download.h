#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace lockstep {

struct DownloadOptions {
  /// What is sent as Accept; empty: anything.
  std::string accept{};
  /// Of the whole file: a longer one is refused as soon as that shows.
  std::uint64_t most_bytes = std::uint64_t{1} << 40;
  /// Longest time to connect, and in which nothing to speak of arrives (1 KiB a second).
  std::chrono::seconds stall_timeout{30};
  /// Called about once a second and whenever bytes come, with those that are there and those that
  /// there will be (0: not known). What it throws ends the download and comes out of it.
  std::function<void(std::uint64_t, std::uint64_t)> on_progress{};
};

/// Gets a file by https://, http:// or file://, and by the proxies that the environment names
/// (https_proxy, no_proxy, …). It comes to `<target>.part`, which is renamed to `target` when it is
/// all there. A connection that breaks is taken up again where it broke, or from the start where
/// the server cannot, kDownloadAttempts times in all. Threads: any, one at a time. Errors:
/// TimeoutError when nothing arrives; DownloadError naming URL and reason; SystemError when it
/// cannot be written; UsageError for what is no such URL.
void download(const std::string& url, const std::filesystem::path& target,
              const DownloadOptions& options);

inline constexpr int kDownloadAttempts = 4;

}  // namespace lockstep
