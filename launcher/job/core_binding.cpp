#include "launcher/job/core_binding.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

using Cpus = std::vector<int>;

// Processors in groups by some property of their places, ascending.
template <class Key>
std::map<Key, Cpus> group_cpus(const std::vector<CpuPlace>& places, Key CpuPlace::*key) {
  std::map<Key, Cpus> groups;
  for (const CpuPlace& place : places) groups[place.*key].push_back(place.cpu);
  return groups;
}

std::vector<CpuPlace> of_node(const std::vector<CpuPlace>& places, int node) {
  std::vector<CpuPlace> result;
  std::copy_if(places.begin(), places.end(), std::back_inserter(result),
               [&](const CpuPlace& place) { return place.node == node; });
  return result;
}

// The node of each seat where no GPU says it: that of the core at which the worker's part of all
// cores begins, when they stand in the order of their nodes.
std::vector<int> spread_over_nodes(const std::vector<CpuPlace>& places, int seat_count) {
  std::vector<std::pair<int, int>> cores;  // node, core
  for (const CpuPlace& place : places) cores.emplace_back(place.node, place.core);
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  std::vector<int> nodes;
  for (int seat = 0; seat < seat_count; ++seat) {
    const auto begin =
        static_cast<std::size_t>(seat) * cores.size() / static_cast<std::size_t>(seat_count);
    nodes.push_back(cores[begin].first);
  }
  return nodes;
}

Cpus node_cpus(const std::vector<CpuPlace>& node) {
  Cpus cpus;
  for (const CpuPlace& place : node) cpus.push_back(place.cpu);
  return cpus;
}

Cpus socket_cpus(const std::vector<CpuPlace>& places, const std::vector<CpuPlace>& node) {
  return group_cpus(places, &CpuPlace::package)[node.front().package];
}

// Cores that do not divide evenly: the first seats have one more.
Cpus exclusive_cpus(const std::vector<CpuPlace>& node, std::size_t seat, std::size_t seats) {
  const auto cores = group_cpus(node, &CpuPlace::core);
  if (cores.size() < seats) {
    throw UsageError(concat("--numa-binding=exclusive: NUMA node ", node.front().node, " has ",
                            count_text(cores.size(), "core"), " for ", seats,
                            " workers or GPUs; use --numa-binding=node or fewer workers"));
  }
  const std::size_t each = cores.size() / seats;
  const std::size_t larger = cores.size() % seats;
  const std::size_t begin = seat * each + std::min(seat, larger);
  const std::size_t count = each + (seat < larger ? 1 : 0);
  Cpus cpus;
  auto core = std::next(cores.begin(), static_cast<std::ptrdiff_t>(begin));
  for (std::size_t i = 0; i < count; ++i, ++core) {
    cpus.insert(cpus.end(), core->second.begin(), core->second.end());
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

// The caches with most processors first; seats beyond the last begin again.
Cpus core_complex_cpus(const std::vector<CpuPlace>& node, std::size_t seat) {
  std::vector<Cpus> caches;
  for (auto& [cache, cpus] : group_cpus(node, &CpuPlace::cache)) caches.push_back(cpus);
  std::stable_sort(caches.begin(), caches.end(),
                   [](const Cpus& a, const Cpus& b) { return a.size() > b.size(); });
  return caches[seat % caches.size()];
}

}  // namespace

NumaBinding parse_numa_binding(const std::string& text) {
  if (text == "node") return NumaBinding::kNode;
  if (text == "socket") return NumaBinding::kSocket;
  if (text == "exclusive") return NumaBinding::kExclusive;
  if (text == "core-complex") return NumaBinding::kCoreComplex;
  throw UsageError(
      concat("--numa-binding='", text, "': give node, socket, exclusive or core-complex"));
}

BindingPlan plan_core_binding(NumaBinding binding, const std::vector<CpuPlace>& cpus,
                              const std::vector<int>& gpu_nodes, int worker_count) {
  if (binding == NumaBinding::kNone) return {};
  LOCKSTEP_ASSERT(!cpus.empty() && worker_count > 0);
  const auto workers = static_cast<std::size_t>(worker_count);
  // A seat for each GPU, whether this job uses it or not: another job may have its cores.
  const std::vector<int> seats =
      gpu_nodes.size() < workers ? spread_over_nodes(cpus, worker_count) : gpu_nodes;
  std::vector<Cpus> plan;
  for (std::size_t worker = 0; worker < workers; ++worker) {
    const int node_number = seats[worker];
    const std::vector<CpuPlace> node = of_node(cpus, node_number);
    if (node.empty()) {
      throw UsageError(concat("--numa-binding: the GPU of local rank ", worker, " is at NUMA node ",
                              node_number,
                              ", whose processors this process may not use; check taskset -p and "
                              "the cpuset of the container, or omit the flag"));
    }
    const auto here = static_cast<std::ptrdiff_t>(worker);
    const auto seat =
        static_cast<std::size_t>(std::count(seats.begin(), seats.begin() + here, node_number));
    const auto seats_of_node =
        static_cast<std::size_t>(std::count(seats.begin(), seats.end(), node_number));
    switch (binding) {
      case NumaBinding::kNone:
        break;
      case NumaBinding::kNode:
        plan.push_back(node_cpus(node));
        break;
      case NumaBinding::kSocket:
        plan.push_back(socket_cpus(cpus, node));
        break;
      case NumaBinding::kExclusive:
        plan.push_back(exclusive_cpus(node, seat, seats_of_node));
        break;
      case NumaBinding::kCoreComplex:
        plan.push_back(core_complex_cpus(node, seat));
        break;
    }
  }
  return plan;
}

std::vector<int> processors_of(const BindingPlan& plan, int local_rank) {
  return plan.empty() ? Cpus() : plan[static_cast<std::size_t>(local_rank)];
}

int thread_share(const BindingPlan& plan, int local_rank, int worker_count, int usable_cpus) {
  int threads = usable_cpus / worker_count;
  if (!plan.empty()) {
    const Cpus own = processors_of(plan, local_rank);
    // Two workers have the same processors or none in common.
    const auto sharing = std::count(plan.begin(), plan.end(), own);
    threads =
        std::min(threads, static_cast<int>(static_cast<std::ptrdiff_t>(own.size()) / sharing));
  }
  return std::max(threads, 1);
}

}  // namespace lockstep::inline internal
