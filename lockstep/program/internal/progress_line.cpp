#include "lockstep/program/internal/progress_line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {
namespace {

constexpr std::string_view kGreen = "\x1b[32m";
constexpr std::string_view kPlain = "\x1b[0m";

template <class... Values>
std::string formatted(const char* format, Values... values) {
  char text[96];
  const int length = std::snprintf(text, sizeof text, format, values...);
  return {text, std::min(static_cast<std::size_t>(std::max(length, 0)), sizeof text - 1)};
}

// "3/20", as wide for the first as for the last.
std::string counted(const char* what, std::int64_t count, std::int64_t total) {
  const auto width = static_cast<int>(std::to_string(total).size());
  return formatted("%s %*lld/%lld", what, width, static_cast<long long>(count),
                   static_cast<long long>(total));
}

std::string bar_text(double fraction, int width, bool color) {
  const int done = static_cast<int>(fraction * width);
  std::string filled(static_cast<std::size_t>(done), '=');
  if (0 < done && done < width) filled.back() = '>';
  const std::string empty(static_cast<std::size_t>(width - done), ' ');
  if (!color) return "[" + filled + empty + "]";
  return "[" + std::string(kGreen) + filled + std::string(kPlain) + empty + "]";
}

std::vector<std::string> fields_of(const Progress& progress) {
  std::vector<std::string> fields;
  fields.push_back(formatted("%3d %%", static_cast<int>(fraction_done(progress) * 100)));
  fields.push_back(counted("step", progress.step, progress.steps_per_epoch));
  if (progress.steps_per_second > 0) {
    const double rate = progress.steps_per_second;
    fields.push_back(formatted(rate < 10 ? "%.1f step/s" : "%.0f step/s", rate));
    const auto left = static_cast<double>(
        (progress.epochs - progress.epoch) * progress.steps_per_epoch - progress.step);
    // Beyond a day or so an estimate says nothing, and far beyond it would overflow.
    constexpr double kLongestEtaSeconds = 359999;
    const double seconds = std::min(std::ceil(left / rate), kLongestEtaSeconds);
    fields.push_back("eta " + clock_text(std::chrono::seconds(static_cast<long long>(seconds))));
  }
  if (progress.loss) {
    // As wide each time as far as that goes, so that the line does not tremble.
    const double size = std::abs(*progress.loss);
    const bool ordinary = size == 0 || (1e-3 <= size && size < 1e4);
    fields.push_back(formatted(ordinary ? "loss %.4f" : "loss %.3e", *progress.loss));
  }
  return fields;
}

}  // namespace

double fraction_done(const Progress& progress) {
  const double total =
      static_cast<double>(progress.epochs) * static_cast<double>(progress.steps_per_epoch);
  const double done =
      static_cast<double>(progress.epoch) * static_cast<double>(progress.steps_per_epoch) +
      static_cast<double>(progress.step);
  return total > 0 ? std::clamp(done / total, 0.0, 1.0) : 1.0;
}

std::string progress_line(const Progress& progress, const ProgressLineOptions& options) {
  constexpr int kNarrowestBar = 10;
  constexpr int kWidestBar = 40;
  constexpr int kBarFrame = 3;  // A space and the brackets.
  const auto columns = static_cast<std::size_t>(std::max(options.columns, 0));

  std::string line =
      counted("epoch", std::min(progress.epoch + 1, progress.epochs), progress.epochs);
  std::string fields;
  for (const std::string& field : fields_of(progress)) {
    if (line.size() + fields.size() + 2 + field.size() > columns) break;
    fields += "  " + field;
  }
  const int left = static_cast<int>(columns) - static_cast<int>(line.size() + fields.size());
  if (options.bar && left >= kBarFrame + kNarrowestBar) {
    const int width = std::min(left - kBarFrame, kWidestBar);
    return line + " " + bar_text(fraction_done(progress), width, options.color) + fields;
  }
  line += fields;
  return line.substr(0, columns);
}

std::string clock_text(std::chrono::seconds duration) {
  const auto seconds = static_cast<long long>(duration.count());
  if (seconds < 3600) return formatted("%lld:%02lld", seconds / 60, seconds % 60);
  return formatted("%lld:%02lld:%02lld", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

}  // namespace lockstep::inline internal
