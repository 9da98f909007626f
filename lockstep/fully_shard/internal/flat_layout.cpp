#include "lockstep/fully_shard/internal/flat_layout.h"

#include <algorithm>

namespace lockstep::inline internal {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

FlatLayout plan_flat_layout(const std::vector<std::int64_t>& elements, int world_size,
                            std::int64_t alignment) {
  FlatLayout layout{.world_size = world_size};
  std::int64_t end = 0;
  for (const std::int64_t count : elements) {
    const std::int64_t begin = round_up(end, alignment);
    end = begin + count;
    layout.parameters.push_back({begin, end});
  }
  layout.chunk = round_up((end + world_size - 1) / world_size, alignment);
  return layout;
}

ElementRange FlatLayout::piece(int rank, std::size_t parameter) const {
  const ElementRange& whole = parameters[parameter];
  const std::int64_t begin = std::max(whole.begin, rank * chunk);
  const std::int64_t end = std::min(whole.end, (rank + 1) * chunk);
  if (end <= begin) return {};
  return {begin - whole.begin, end - whole.begin};
}

std::int64_t FlatLayout::place_in_chunk(int rank, std::size_t parameter) const {
  const ElementRange held = piece(rank, parameter);
  return held.size() == 0 ? 0 : parameters[parameter].begin + held.begin - rank * chunk;
}

ElementRange FlatLayout::elements_of(int rank) const {
  const std::int64_t end = parameters.back().end;
  const std::int64_t begin = std::min(rank * chunk, end);
  return {begin, std::min(begin + chunk, end)};
}

ElementRange FlatLayout::elements_of(int rank, std::size_t parameter) const {
  const ElementRange held = piece(rank, parameter);
  const std::int64_t first = parameters[parameter].begin;
  return {first + held.begin, first + held.end};
}

std::vector<FlatPart> FlatLayout::parts_of(ElementRange range) const {
  std::vector<FlatPart> parts;
  std::int64_t next = range.begin;
  const auto add = [&](std::optional<std::size_t> parameter, std::int64_t end) {
    if (end > next) parts.push_back({parameter, {next, end}});
    next = std::max(next, end);
  };
  for (std::size_t i = parameter_at(range.begin); i < parameters.size(); ++i) {
    add(std::nullopt, std::min(parameters[i].begin, range.end));
    add(i, std::min(parameters[i].end, range.end));
  }
  add(std::nullopt, range.end);
  return parts;
}

std::size_t FlatLayout::parameter_at(std::int64_t element) const {
  const auto after = std::ranges::upper_bound(parameters, element, {}, &ElementRange::begin);
  return static_cast<std::size_t>(std::max<std::ptrdiff_t>(after - parameters.begin() - 1, 0));
}

}  // namespace lockstep::inline internal
