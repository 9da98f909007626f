#include "lockstep/fetch/transfer_progress.h"

#include <array>
#include <cstdio>
#include <utility>

#include <unistd.h>

#include "lockstep/base/concat.h"
#include "lockstep/os/terminal.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kTerminalInterval{200};
constexpr std::chrono::seconds kLineInterval{10};

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  char text[32];
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f %s", decimals, value, kUnits[unit]);
  return text;
}

std::string transfer_text(const std::string& name, std::uint64_t done_bytes,
                          std::uint64_t total_bytes, std::chrono::milliseconds elapsed) {
  std::string text = concat(name, "  ", bytes_text(done_bytes));
  if (total_bytes > 0) {
    text += concat(" of ", bytes_text(total_bytes), " (", done_bytes * 100 / total_bytes, " %)");
  }
  if (elapsed.count() > 0) {
    const double seconds = std::chrono::duration<double>(elapsed).count();
    const auto rate = static_cast<std::uint64_t>(static_cast<double>(done_bytes) / seconds);
    text += concat(", ", bytes_text(rate), "/s");
  }
  return text;
}

TransferProgress::TransferProgress(std::string name)
    : name_(std::move(name)), columns_(terminal_columns(STDERR_FILENO)) {}

TransferProgress::~TransferProgress() {
  if (line_open_) std::fputc('\n', stderr);
}

void TransferProgress::update(std::uint64_t done_bytes, std::uint64_t total_bytes) {
  const auto now = Clock::now();
  if (now < next_) return;
  const auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(now - start_);
  std::string text = transfer_text(name_, done_bytes, total_bytes, elapsed);
  if (!columns_) {
    std::fprintf(stderr, "%s\n", text.c_str());
    next_ = now + kLineInterval;
    return;
  }
  // The last column stays free: some terminals wrap there.
  text.resize(static_cast<std::size_t>(*columns_ > 1 ? *columns_ - 1 : 0), ' ');
  std::fprintf(stderr, "\r%s", text.c_str());
  std::fflush(stderr);
  line_open_ = true;
  next_ = now + kTerminalInterval;
}

}  // namespace lockstep
