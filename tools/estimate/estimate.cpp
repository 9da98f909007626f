#include "tools/estimate/estimate.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

constexpr double kFloatBytes = 4;
constexpr double kHalfBytes = 2;
constexpr double kBitsPerByte = 8;
// Gb/s.
constexpr std::array kNetworks = {1, 10, 25, 100};

double states_of(EstimatedOptimizer optimizer) {
  switch (optimizer) {
    case EstimatedOptimizer::kSgd:
      return 0;
    case EstimatedOptimizer::kMomentum:
      return 1;
    case EstimatedOptimizer::kAdam:
      return 2;
  }
  return 0;
}

std::string time_text(double seconds) {
  char text[32];
  if (seconds < 1) {
    std::snprintf(text, sizeof(text), "%.3g ms", seconds * 1000);
  } else {
    std::snprintf(text, sizeof(text), "%.3g s", seconds);
  }
  return text;
}

std::string row(const std::string& name, const std::string& value) {
  char text[160];
  std::snprintf(text, sizeof(text), "  %-44s %10s\n", name.c_str(), value.c_str());
  return text;
}

double network_seconds(const Estimate& estimate, double gigabits) {
  return estimate.network_bytes * kBitsPerByte / (gigabits * 1e9);
}

}  // namespace

Estimate estimate(const EstimateOptions& options) {
  const double whole = options.parameters * kFloatBytes;
  const double ranks = static_cast<double>(options.nproc_per_node) * options.nnodes;
  const double states = whole * states_of(options.optimizer);
  Estimate result;
  result.memory = {{"parameters", whole}, {"gradients, also their buckets", whole}};
  if (options.mixed_precision) {
    result.memory.push_back(
        {"parameters in 16 bits, in the forward pass", options.parameters * kHalfBytes});
  }
  if (states > 0) {
    result.memory.push_back({options.shard_optimizer ? "optimizer, this rank's shard" : "optimizer",
                             options.shard_optimizer ? states / ranks : states});
  }
  if (options.ema) result.memory.push_back({"averaged weights", whole});
  result.snapshot_bytes = whole + states + (options.ema ? whole : 0);
  if (options.asynchronous_snapshots) {
    // Only rank 0 writes: the estimate is of the largest rank.
    result.memory.push_back({"copy for the snapshot, on rank 0", result.snapshot_bytes});
  }
  for (const EstimatedPart& part : result.memory) result.rank_bytes += part.bytes;
  const double copies = options.asynchronous_snapshots ? result.snapshot_bytes : 0;
  result.node_bytes = (result.rank_bytes - copies) * options.nproc_per_node + copies;
  result.gradient_bytes = whole;
  result.network_bytes = 2.0 * (options.nnodes - 1) / options.nnodes * whole;
  return result;
}

std::string describe(const Estimate& estimate, const EstimateOptions& options) {
  char count[32];
  std::snprintf(count, sizeof(count), "%.4g", options.parameters / 1e6);
  std::string text =
      concat(count, " million parameters on ", options.nnodes, " x ", options.nproc_per_node,
             " ranks\n\nMemory of a rank, without activations\n");
  for (const EstimatedPart& part : estimate.memory) text += row(part.name, size_text(part.bytes));
  text += row("total", size_text(estimate.rank_bytes));
  text += row("total of a machine", size_text(estimate.node_bytes));
  text += row("snapshot on disk", size_text(estimate.snapshot_bytes));
  text += "\nTraffic of a step\n";
  text += row("gradients, all-reduced", size_text(estimate.gradient_bytes));
  if (options.nnodes == 1) {
    text += "  All ranks share memory: no network. The time on this machine:\n";
    char command[96];
    std::snprintf(command, sizeof(command), "    lockstep bench all-reduce --sizes=%.0f\n",
                  estimate.gradient_bytes);
    return text + command;
  }
  text += row("sent and received by each machine", size_text(estimate.network_bytes));
  for (const int gigabits : kNetworks) {
    text += row(concat("  at ", gigabits, " Gb/s"), time_text(network_seconds(estimate, gigabits)));
  }
  text += "  Most of it overlaps with the backward pass, where that takes longer.\n";
  return text;
}

std::string to_json(const Estimate& estimate, const EstimateOptions& options) {
  nlohmann::ordered_json json = {{"parameters", options.parameters},
                                 {"nnodes", options.nnodes},
                                 {"nproc_per_node", options.nproc_per_node}};
  for (const EstimatedPart& part : estimate.memory) json["memory"][part.name] = part.bytes;
  json["rank_bytes"] = estimate.rank_bytes;
  json["node_bytes"] = estimate.node_bytes;
  json["snapshot_bytes"] = estimate.snapshot_bytes;
  json["gradient_bytes"] = estimate.gradient_bytes;
  json["network_bytes"] = estimate.network_bytes;
  return json.dump();
}

double count_parameters(const std::string& shown_json, const std::string& path) {
  const std::string model = "model.";  // In a snapshot; other files have weights only.
  const auto shown = nlohmann::json::parse(shown_json, nullptr, /*allow_exceptions=*/false);
  double count = 0;
  if (shown.is_object() && shown.contains("tensors")) {
    const bool is_snapshot = shown.contains("world_size");
    for (const auto& tensor : shown["tensors"]) {
      if (is_snapshot && !tensor.at("name").get<std::string>().starts_with(model)) continue;
      double size = 1;
      for (const auto& length : tensor.at("shape")) size *= length.get<double>();
      count += size;
    }
  }
  if (count > 0) return count;
  throw UsageError(concat("estimate: ", path, " has no weights"));
}

double parse_parameter_count(const std::string& text) {
  constexpr std::array<std::pair<char, double>, 7> kSuffixes = {
      {{'k', 1e3}, {'K', 1e3}, {'m', 1e6}, {'M', 1e6}, {'b', 1e9}, {'B', 1e9}, {'G', 1e9}}};
  std::string digits = text;
  double factor = 1;
  for (const auto& [letter, value] : kSuffixes) {
    if (digits.empty() || digits.back() != letter) continue;
    factor = value;
    digits.pop_back();
    break;
  }
  const auto number = parse_number<double>(digits);
  if (number && *number > 0 && *number * factor >= 1) return std::round(*number * factor);
  throw UsageError(
      concat("estimate: '", text,
             "' is neither a file nor a number of parameters, as 124M, 1.5B or 85000"));
}

}  // namespace lockstep::inline internal
