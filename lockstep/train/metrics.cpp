#include "lockstep/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/train/internal/exact_sum.h"

namespace lockstep {
namespace {

// A hash that a double holds.
double hash_of_names(const std::string& names) {
  constexpr int kBitsBeyondDouble = 12;
  return static_cast<double>(hash_bytes(names.data(), names.size()) >> kBitsBeyondDouble);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

const double* find_metric(const Metrics& metrics, std::string_view name) {
  const auto found = std::ranges::find(metrics, name, &Metrics::value_type::first);
  return found == metrics.end() ? nullptr : &found->second;
}

void set_metrics(Metrics& metrics, const Metrics& newer) {
  for (const auto& [name, value] : newer) {
    const auto found = std::ranges::find(metrics, name, &Metrics::value_type::first);
    if (found == metrics.end()) {
      metrics.emplace_back(name, value);
    } else {
      found->second = value;
    }
  }
}

std::string describe(const Metrics& metrics) {
  std::ostringstream text;
  constexpr int kDigits = 4;
  text << std::setprecision(kDigits);
  for (const auto& [name, value] : metrics) {
    // 28882 and not 2.888e+04.
    const bool is_large = std::abs(value) >= 1e3 && std::abs(value) < 1e9;
    text << "  " << name << " ";
    if (is_large) {
      text << static_cast<std::int64_t>(value);
    } else {
      text << value;
    }
  }
  return text.str();
}

MetricMeans::Collected& MetricMeans::of(std::string_view name) {
  for (Collected& one : collected_) {
    if (one.name == name) return one;
  }
  return collected_.emplace_back(Collected{.name = std::string(name), .values = {}});
}

void MetricMeans::add(std::vector<std::int64_t>& sums, double value, double weight) {
  sums.resize(2 * kWordsOfExactSum);
  const std::span all(sums);
  // A sample that does not count may have no number.
  if (weight > 0) add_exactly(all.first(kWordsOfExactSum), value * weight);
  add_exactly(all.last(kWordsOfExactSum), weight);
}

void MetricMeans::log(std::string_view name, const at::Tensor& value, double weight) {
  if (!value.defined() || value.numel() != 1) {
    throw UsageError(concat("log '", name, "': a tensor of ", value.defined() ? value.numel() : 0,
                            " elements; give one number, as value.mean()"));
  }
  Collected& one = of(name);
  if (!value.is_cpu()) {
    one.values.emplace_back(value.detach(), weight);
    return;
  }
  add(one.sums, value.item<double>(), weight);
}

void MetricMeans::log(std::string_view name, double value, double weight) {
  add(of(name).sums, value, weight);
}

// A line each.
std::string MetricMeans::names() const {
  std::string names;
  for (const Collected& one : collected_) names += one.name + "\n";
  return names;
}

// Takes in the names of all ranks, rank 0's first.
void MetricMeans::agree_on_names(const ProcessGroup& group, bool has_new_ranks) {
  std::vector<Collected> all;
  const auto is_new = [&](const std::string& name) {
    return std::ranges::find(all, name, &Collected::name) == all.end();
  };
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const auto theirs = lines_of(broadcast_text(group, names(), rank, "names of metrics"));
    const bool differs = theirs.size() != all.size() || std::ranges::any_of(theirs, is_new);
    if (rank > 0 && differs && !has_new_ranks) {
      const std::string own = names();
      throw UsageError(concat("log: rank ", rank, " logged other names than rank 0; this rank (",
                              group.rank(),
                              "): ", own.empty() ? "none" : own.substr(0, own.size() - 1),
                              "; log the same names on all ranks"));
    }
    for (const std::string& name : theirs) {
      if (is_new(name)) all.push_back({.name = name, .values = {}});
    }
  }
  for (Collected& one : collected_) {
    *std::ranges::find(all, one.name, &Collected::name) = std::move(one);
  }
  collected_ = std::move(all);
}

Metrics MetricMeans::take_means(const ProcessGroup& group, std::span<double> agreed,
                                bool has_new_ranks) {
  // The hash of each rank's names, and rank 0's numbers.
  const auto numbers = static_cast<std::int64_t>(agreed.size());
  at::Tensor hashes = at::zeros({group.world_size() + numbers}, at::kDouble);
  auto* const hash = hashes.mutable_data_ptr<double>();
  double* const of_first = hash + group.world_size();
  hash[group.rank()] = hash_of_names(names());
  if (group.rank() == 0) std::ranges::copy(agreed, of_first);
  const auto sum_up = [&](at::Tensor& tensor) {
    at::Tensor there = tensor.to(group.device());
    group.all_reduce(there, {.name = "metrics"});
    tensor.copy_(there);
  };
  sum_up(hashes);
  const auto differs = [&](double one) { return one != hash[0]; };
  if (std::any_of(hash, of_first, differs)) agree_on_names(group, has_new_ranks);
  const std::size_t count = collected_.size();
  constexpr std::size_t kWords = 2 * kWordsOfExactSum;
  at::Tensor sums = at::zeros({static_cast<std::int64_t>(count * kWords)}, at::kLong);
  const std::span all(sums.mutable_data_ptr<std::int64_t>(), count * kWords);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::int64_t> own = collected_[i].sums;
    own.resize(kWords);
    for (const auto& [value, weight] : collected_[i].values) {
      add(own, weight > 0 ? value.item<double>() : 0, weight);
    }
    std::ranges::copy(own, all.begin() + static_cast<std::ptrdiff_t>(i * kWords));
  }
  if (count > 0) sum_up(sums);
  std::copy_n(of_first, numbers, agreed.begin());
  Metrics means;
  for (std::size_t i = 0; i < count; ++i) {
    const auto of_metric = all.subspan(i * kWords, kWords);
    means.emplace_back(collected_[i].name, rounded_sum(of_metric.first(kWordsOfExactSum)) /
                                               rounded_sum(of_metric.last(kWordsOfExactSum)));
  }
  collected_.clear();
  return means;
}

}  // namespace lockstep
