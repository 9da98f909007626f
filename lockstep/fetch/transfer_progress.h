#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

/// "169 MB", "57 kB": three digits, powers of 1000.
std::string bytes_text(std::uint64_t bytes);

/// "cifar-100-binary.tar.gz  12.3 of 169 MB (7 %), 4.1 MB/s". Without a total, what is there.
std::string transfer_text(const std::string& name, std::uint64_t done_bytes,
                          std::uint64_t total_bytes, std::chrono::milliseconds elapsed);

/// Tells on stderr how far a transfer is, if it takes more than two seconds: on a terminal in one
/// line that is written anew, elsewhere by a line every ten seconds. Threads: one.
class TransferProgress {
 public:
  explicit TransferProgress(std::string name);
  TransferProgress(const TransferProgress&) = delete;
  TransferProgress& operator=(const TransferProgress&) = delete;
  /// Ends the terminal's line.
  ~TransferProgress();

  void update(std::uint64_t done_bytes, std::uint64_t total_bytes);

 private:
  using Clock = std::chrono::steady_clock;

  std::string name_;
  std::optional<int> columns_;  ///< nothing: no terminal
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_ + std::chrono::seconds(2);
  bool line_open_ = false;
};

}  // namespace lockstep
