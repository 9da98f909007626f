#include "lockstep/comm/backends/hierarchical/chunk_plan.h"

#include <algorithm>
#include <cstddef>

namespace lockstep::hierarchical {
namespace {

int count_of(const std::vector<int>& ranks) {
  return static_cast<int>(ranks.size());
}

// By machine, the chunks of the ranks whose local indices belong to this share.
std::vector<std::vector<int>> carried_by(const Machines& machines, int share) {
  std::vector<std::vector<int>> carried;
  for (const std::vector<int>& ranks : machines.ranks) {
    std::vector<int>& chunks = carried.emplace_back();
    for (int index = share; index < count_of(ranks); index += machines.shares) {
      chunks.push_back(ranks[static_cast<std::size_t>(index)]);
    }
  }
  return carried;
}

// The chunks that a rank of this machine has before the last step of an all-gather and others have
// not: its own, and those that it has received from other machines.
std::vector<int> brought_by(const Machines& machines, int local_index) {
  std::vector<int> chunks{machines.local_ranks()[static_cast<std::size_t>(local_index)]};
  if (local_index >= machines.shares) return chunks;
  const auto carried = carried_by(machines, local_index);
  for (int machine = 0; machine < machines.count; ++machine) {
    if (machine == machines.machine) continue;
    const std::vector<int>& more = carried[static_cast<std::size_t>(machine)];
    chunks.insert(chunks.end(), more.begin(), more.end());
  }
  return chunks;
}

}  // namespace

ChunkPlan plan_all_gather(const Machines& machines) {
  ChunkPlan plan;
  const std::vector<int>& local = machines.local_ranks();
  const int own = machines.local_index;
  if (machines.has_share()) plan.carried = carried_by(machines, own);
  // Ranks without a share hand their chunks to those that carry them.
  plan.before.happens = count_of(local) > machines.shares;
  for (int index = machines.shares; index < count_of(local); ++index) {
    const int chunk = local[static_cast<std::size_t>(index)];
    if (index == own) plan.before.outgoing.push_back({.chunk = chunk});
    if (index % machines.shares == own)
      plan.before.incoming.push_back({.chunk = chunk, .peer = index});
  }
  plan.after.happens = count_of(local) > 1;
  if (!plan.after.happens) return plan;
  for (int index = 0; index < count_of(local); ++index) {
    const std::vector<int> chunks = brought_by(machines, index);
    plan.after.parts = std::max(plan.after.parts, count_of(chunks));
    for (int part = 0; part < count_of(chunks); ++part) {
      const int chunk = chunks[static_cast<std::size_t>(part)];
      if (index == own) {
        plan.after.outgoing.push_back({.chunk = chunk, .part = part});
      } else {
        plan.after.incoming.push_back({.chunk = chunk, .part = part, .peer = index});
      }
    }
  }
  return plan;
}

ChunkPlan plan_reduce_scatter(const Machines& machines) {
  ChunkPlan plan;
  const std::vector<int>& local = machines.local_ranks();
  const int own = machines.local_index;
  if (machines.has_share()) plan.carried = carried_by(machines, own);
  plan.before.happens = true;
  for (int share = 0; share < machines.shares; ++share) {
    for (const std::vector<int>& chunks : carried_by(machines, share)) {
      for (const int chunk : chunks) {
        const LocalMove move{.chunk = chunk, .part = chunk};
        (share == own ? plan.before.summed : plan.before.outgoing).push_back(move);
        plan.before.parts = std::max(plan.before.parts, chunk + 1);
      }
    }
  }
  // Those that carry the chunks of ranks without a share hand them the sums.
  plan.after.happens = count_of(local) > machines.shares;
  for (int index = machines.shares; index < count_of(local); ++index) {
    const int chunk = local[static_cast<std::size_t>(index)];
    const int part = index / machines.shares - 1;
    plan.after.parts = std::max(plan.after.parts, part + 1);
    if (index % machines.shares == own)
      plan.after.outgoing.push_back({.chunk = chunk, .part = part});
    if (index == own) {
      plan.after.incoming.push_back(
          {.chunk = chunk, .part = part, .peer = index % machines.shares});
    }
  }
  return plan;
}

}  // namespace lockstep::hierarchical
