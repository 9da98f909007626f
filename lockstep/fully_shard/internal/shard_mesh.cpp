#include "lockstep/fully_shard/internal/shard_mesh.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/hierarchical/machines.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/machine_group.h"
#include "lockstep/ddp/exchange/flat_messages.h"
#include "lockstep/ddp/exchange/machine_groups.h"
#include "lockstep/fully_shard/internal/linked_groups.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kOperation = "fully_shard";

// The ranks of this machine, and those with this rank's place on each; empty: this rank alone.
struct Axes {
  ProcessGroup inside = {};
  ProcessGroup between = {};
};

Axes axes_of(const ProcessGroup& group, const hierarchical::Machines& machines) {
  if (group.world_size() == 1) return {};
  if (machines.count == 1) return {.inside = group};
  if (machines.most_ranks == 1) return {.between = group};
  const bool is_hierarchical = group.backend_name() == "hierarchical";
  Axes axes;
  if (is_hierarchical) {
    axes.inside = machine_group(group, machines.ranks);
  } else {
    for (const std::vector<int>& ranks : machines.ranks) {
      if (const ProcessGroup made = group.new_group(ranks)) axes.inside = made;
    }
  }
  const NewGroupOptions options{.backend = is_hierarchical ? "gloo" : ""};
  for (std::size_t place = 0; place < machines.ranks.front().size(); ++place) {
    std::vector<int> ranks;
    for (const std::vector<int>& of_machine : machines.ranks) ranks.push_back(of_machine[place]);
    if (const ProcessGroup made = group.new_group(ranks, options)) axes.between = made;
  }
  return axes;
}

ShardMesh mesh_by_machine(const ProcessGroup& group, HybridShard hybrid) {
  const auto machines = hierarchical::machines_of(machines_by_rank(group), group.rank());
  for (const std::vector<int>& ranks : machines.ranks) {
    if (ranks.size() == machines.ranks.front().size()) continue;
    throw UsageError(concat(kOperation, " on rank ", group.rank(),
                            ": hybrid_shard needs machines with the same number of ranks, and they "
                            "have ",
                            machines.ranks.front().size(), " and ", ranks.size(),
                            "; start as many ranks on each"));
  }
  const bool shards_inside = hybrid == HybridShard::kShardInMachines;
  const Axes axes = axes_of(group, machines);
  ShardMesh mesh{.shard = shards_inside ? axes.inside : axes.between,
                 .replicate = shards_inside ? axes.between : axes.inside};
  if (!mesh.shard) mesh.shard = group.world_size() == 1 ? group : consecutive_ranks(group, 1);
  return mesh;
}

// Ranks of one grid get the same number, those of two grids that share groups of one kind others:
// it is made where the first column begins, goes along the column, and from there along each row.
bool is_one_grid(const ShardMesh& mesh) {
  std::random_device random;
  const auto number = static_cast<std::int64_t>((std::uint64_t{random()} << 31U) ^ random());
  const std::int64_t of_column = gather_rows(mesh.replicate, {number}).front()[0];
  const std::int64_t of_row = gather_rows(mesh.shard, {of_column}).front()[0];
  const auto rows = gather_rows(mesh.replicate, {of_row});
  return std::ranges::all_of(rows, [&](const auto& row) { return row == rows.front(); });
}

// Whether all ranks of both groups say so.
bool all_agree(const ShardMesh& mesh, bool own) {
  for (const ProcessGroup& group : {mesh.replicate, mesh.shard}) {
    const auto rows = gather_rows(group, {own ? 1 : 0});
    own = std::ranges::all_of(rows, [](const auto& row) { return row[0] == 1; });
  }
  return own;
}

// In a grid a rank has the number of its shard in both of its groups, as the others there have.
void check_grid(const ShardMesh& mesh) {
  const auto are_equal = [](const ProcessGroup& group, const ProcessGroup& other) {
    const auto rows = gather_rows(group, {other.rank(), other.world_size()});
    return std::ranges::all_of(rows, [&](const auto& row) { return row == rows.front(); });
  };
  const bool columns = are_equal(mesh.replicate, mesh.shard);
  const bool rows = are_equal(mesh.shard, mesh.replicate);
  const bool is_grid = is_one_grid(mesh);
  if (all_agree(mesh, columns && rows && is_grid)) return;
  throw UsageError(concat(
      kOperation, " on rank ", mesh.shard.rank(),
      ": process_group and replicate_group do not form a grid; the ranks of a replicate_group must "
      "have the same rank in process_groups of one size, and the other way round"));
}

}  // namespace

bool ShardMesh::is_first() const {
  return shard.rank() == 0 && (!replicate || replicate.rank() == 0);
}

void ShardMesh::broadcast(const std::vector<at::Tensor>& tensors) const {
  if (tensors.empty()) return;
  broadcast_tensors(shard, tensors, 0);
  if (replicate) broadcast_tensors(replicate, tensors, 0);
}

void ShardMesh::check_everywhere(const std::function<void(const ProcessGroup&)>& check) const {
  if (!replicate) return check(shard);
  run_on_all(replicate, kOperation, [&] { check(shard); });
  run_on_all(shard, kOperation, [&] { check(replicate); });
}

ProcessGroup consecutive_ranks(const ProcessGroup& group, int size) {
  ProcessGroup own;
  for (int first = 0; first < group.world_size(); first += size) {
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), first);
    if (const ProcessGroup made = group.new_group(ranks)) own = made;
  }
  return own;
}

void link_groups(const ShardMesh& mesh, const ProcessGroup& reshard) {
  std::vector<ProcessGroup> groups;
  for (const ProcessGroup& group : {mesh.shard, mesh.replicate, reshard}) {
    if (group && group.world_size() > 1) groups.push_back(group);
  }
  if (groups.size() > 1) LinkedGroups::link(groups);
}

ShardMesh shard_mesh_of(const FullyShardOptions& options) {
  const ProcessGroup group =
      options.process_group ? options.process_group : default_process_group();
  check_same_text(group, kOperation,
                  concat("hybrid_shard=", static_cast<int>(options.hybrid_shard),
                         " has_replicate_group=", options.replicate_group ? 1 : 0));
  if (options.hybrid_shard != HybridShard::kNone) {
    if (options.replicate_group) {
      throw UsageError(concat(kOperation, " on rank ", group.rank(),
                              ": hybrid_shard with replicate_group; give one of them"));
    }
    return mesh_by_machine(group, options.hybrid_shard);
  }
  ShardMesh mesh{.shard = group, .replicate = options.replicate_group};
  if (mesh.replicate) check_grid(mesh);
  if (mesh.replicate && mesh.replicate.world_size() == 1) mesh.replicate = {};
  return mesh;
}

}  // namespace lockstep::inline internal
