#include "lockstep/profile/internal/step_summary.h"

#include <algorithm>
#include <cstdio>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

using Time = StepSummary::Time;

/// Of a step: what is less is not worth a name.
constexpr double kNoticeable = 0.05;

constexpr auto kExchange = static_cast<std::size_t>(StepPhase::kExchange);

Time step_time(const StepSummary::Rank& rank) {
  Time sum{};
  for (const Time phase : rank.mean) sum += phase;
  return sum;
}

// How many of the last arrivals every rank has, by one clock.
std::int64_t comparable_arrivals(const std::vector<RankSteps>& ranks) {
  auto count = ranks[0].arrivals.size();
  for (const RankSteps& rank : ranks) {
    if (rank.clock != ranks[0].clock) return 0;
    count = std::min(count, rank.arrivals.size());
  }
  return static_cast<std::int64_t>(count);
}

void compare_arrivals(StepSummary& summary, const std::vector<RankSteps>& ranks) {
  std::vector<Time> ahead(ranks.size());
  for (std::int64_t back = 1; back <= summary.arrivals_compared; ++back) {
    const auto arrival = [&](const RankSteps& rank) { return *(rank.arrivals.end() - back); };
    const auto last = std::max_element(
        ranks.begin(), ranks.end(),
        [&](const RankSteps& a, const RankSteps& b) { return arrival(a) < arrival(b); });
    ++summary.ranks[static_cast<std::size_t>(last - ranks.begin())].arrived_last;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      ahead[rank] += arrival(*last) - arrival(ranks[rank]);
    }
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    summary.ranks[rank].ahead = ahead[rank] / summary.arrivals_compared;
  }
}

void find_straggler(StepSummary& summary) {
  // How long each waits for the others, of which the straggler waits least.
  const auto wait = [&](const StepSummary::Rank& rank) {
    return summary.arrivals_compared > 0 ? rank.ahead : rank.mean[kExchange];
  };
  const auto straggler =
      std::min_element(summary.ranks.begin(), summary.ranks.end(),
                       [&](const auto& a, const auto& b) { return wait(a) < wait(b); });
  summary.straggler = static_cast<int>(straggler - summary.ranks.begin());
  Time waits{};
  for (const StepSummary::Rank& rank : summary.ranks) waits += wait(rank) - wait(*straggler);
  summary.straggler_delay = waits / (static_cast<std::int64_t>(summary.ranks.size()) - 1);
}

std::string in_ms(Time time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f",
                std::chrono::duration<double, std::milli>(time).count());
  return text;
}

std::string right(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string describe_straggler(const StepSummary& summary) {
  if (!summary.straggler) return {};
  const auto& straggler = summary.ranks[static_cast<std::size_t>(*summary.straggler)];
  const auto limit = std::chrono::duration<double, std::nano>(step_time(straggler)) * kNoticeable;
  if (summary.straggler_delay < limit) return "no straggler\n";
  std::string text = concat("straggler: rank ", *summary.straggler, ", waited for ",
                            in_ms(summary.straggler_delay), " ms a step");
  if (summary.arrivals_compared > 0) {
    text += concat(", arrived last in ", straggler.arrived_last, " of ", summary.arrivals_compared);
  }
  return text + "\n";
}

}  // namespace

}  // namespace lockstep::inline internal

namespace lockstep {

const char* name_of(StepPhase phase) {
  switch (phase) {
    case StepPhase::kData:
      return "data";
    case StepPhase::kForward:
      return "forward";
    case StepPhase::kBackward:
      return "backward";
    case StepPhase::kExchange:
      return "exchange";
    case StepPhase::kOptimizer:
      return "optimizer";
    case StepPhase::kOther:
      break;
  }
  return "other";
}

}  // namespace lockstep

namespace lockstep::inline internal {

StepSummary summarize(const std::vector<RankSteps>& ranks) {
  StepSummary summary{.steps = ranks[0].steps};
  summary.ranks.resize(ranks.size());
  if (summary.steps == 0) return summary;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t phase = 0; phase < kStepPhases; ++phase) {
      summary.ranks[rank].mean[phase] = ranks[rank].total[phase] / summary.steps;
    }
  }
  summary.arrivals_compared = comparable_arrivals(ranks);
  if (summary.arrivals_compared > 0) compare_arrivals(summary, ranks);
  if (ranks.size() > 1) find_straggler(summary);
  return summary;
}

}  // namespace lockstep::inline internal

namespace lockstep {

std::string describe(const StepSummary& summary) {
  constexpr std::size_t kWidth = 11;
  std::string text = concat(summary.steps, " steps, ms a step\n", right("rank", 4));
  for (std::size_t phase = 0; phase < kStepPhases; ++phase) {
    text += right(name_of(static_cast<StepPhase>(phase)), kWidth);
  }
  text += right("step", kWidth) + "\n";
  for (std::size_t rank = 0; rank < summary.ranks.size(); ++rank) {
    text += right(concat(rank), 4);
    for (const Time phase : summary.ranks[rank].mean) text += right(in_ms(phase), kWidth);
    text += right(in_ms(step_time(summary.ranks[rank])), kWidth) + "\n";
  }
  return text + describe_straggler(summary);
}

}  // namespace lockstep

namespace lockstep::inline internal {}  // namespace lockstep::inline internal
