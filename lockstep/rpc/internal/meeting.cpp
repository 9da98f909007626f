#include "lockstep/rpc/internal/meeting.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/rpc/internal/byte_stream.h"

namespace lockstep::rpc::inline internal {
namespace {

constexpr std::size_t kLongestWorkerName = 128;

std::vector<std::uint8_t> to_bytes(const WorkerDescription& card) {
  std::vector<char> bytes;
  ByteWriter writer(bytes);
  writer.put_text(card.name);
  writer.put_text(card.machine);
  writer.put_text(card.problem);
  writer.put_text(card.local_name);
  writer.put(card.local_token);
  writer.put(static_cast<std::uint32_t>(card.device_maps.size()));
  for (const auto& [worker, map] : card.device_maps) {
    writer.put_text(worker);
    writer.put(static_cast<std::uint32_t>(map.size()));
    for (const auto& [from, to] : map) {
      writer.put_text(from.str());
      writer.put_text(to.str());
    }
  }
  return {bytes.begin(), bytes.end()};
}

WorkerDescription from_bytes(const std::vector<std::uint8_t>& bytes) {
  ByteReader reader({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  WorkerDescription card;
  card.name = reader.take_text();
  card.machine = reader.take_text();
  card.problem = reader.take_text();
  card.local_name = reader.take_text();
  card.local_token = reader.take<std::uint64_t>();
  for (auto maps = reader.take<std::uint32_t>(); maps > 0; --maps) {
    auto& map = card.device_maps[std::string(reader.take_text())];
    for (auto entries = reader.take<std::uint32_t>(); entries > 0; --entries) {
      const c10::Device from{std::string(reader.take_text())};
      const c10::Device to{std::string(reader.take_text())};
      map.insert_or_assign(from, to);
    }
  }
  return card;
}

void check_map(const std::string& owner, const std::string& worker,
               const std::unordered_map<c10::Device, c10::Device>& map) {
  std::set<std::string> targets;
  for (const auto& [from, to] : map) {
    if (!from.is_cuda() || !to.is_cuda()) {
      throw UsageError(concat("rpc::init: worker '", owner, "' maps ", from, " to ", to, " of '",
                              worker, "'; only CUDA devices are mapped, the CPU needs no map"));
    }
    if (!targets.insert(to.str()).second) {
      throw UsageError(concat("rpc::init: worker '", owner, "' maps two devices to ", to, " of '",
                              worker,
                              "', so results could not be returned; map each to its own device"));
    }
  }
}

// Every rank's bytes, filled up with zeros.
std::vector<std::vector<std::uint8_t>> gather(const ProcessGroup& group,
                                              const std::vector<std::uint8_t>& own,
                                              std::size_t bytes, const Deadline& deadline) {
  at::Tensor input = at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte);
  std::ranges::copy(own, input.mutable_data_ptr<std::uint8_t>());
  input = input.to(group.device());
  std::vector<at::Tensor> outputs;
  for (int rank = 0; rank < group.world_size(); ++rank) outputs.push_back(at::empty_like(input));
  group.all_gather(
      outputs, input,
      {.timeout = deadline.remaining() + std::chrono::milliseconds(1), .name = "rpc::init"});
  std::vector<std::vector<std::uint8_t>> all;
  for (const at::Tensor& output : outputs) {
    const at::Tensor here = output.cpu();
    const auto* const begin = here.const_data_ptr<std::uint8_t>();
    all.emplace_back(begin, begin + here.numel());
  }
  return all;
}

}  // namespace

// By the group, which notices at once who is gone, and where the program's own waits are asked.
std::vector<WorkerDescription> exchange_cards(const ProcessGroup& group,
                                              const WorkerDescription& own,
                                              const Deadline& deadline) {
  const std::vector<std::uint8_t> card = to_bytes(own);
  std::vector<std::uint8_t> size(sizeof(std::uint64_t));
  const std::uint64_t own_bytes = card.size();
  std::memcpy(size.data(), &own_bytes, sizeof own_bytes);
  std::uint64_t longest = 0;
  for (const auto& bytes : gather(group, size, size.size(), deadline)) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    longest = std::max(longest, length);
  }
  std::vector<WorkerDescription> cards;
  for (const auto& bytes : gather(group, card, longest, deadline))
    cards.push_back(from_bytes(bytes));
  return cards;
}

void check_cards(const std::vector<WorkerDescription>& cards) {
  std::map<std::string, std::size_t> ranks;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const std::string& name = cards[rank].name;
    if (!cards[rank].problem.empty())
      throw UsageError(concat("rpc::init: on rank ", rank, " ", cards[rank].problem));
    if (name.empty() || name.size() > kLongestWorkerName) {
      throw UsageError(concat("rpc::init: rank ", rank, "'s name has ", name.size(),
                              " letters; give it one of 1 to ", kLongestWorkerName));
    }
    const auto [other, is_new] = ranks.emplace(name, rank);
    if (!is_new) {
      throw UsageError(concat("rpc::init: ranks ", other->second, " and ", rank,
                              " are both named '", name, "'; give each its own name"));
    }
  }
  for (const WorkerDescription& card : cards) {
    for (const auto& [worker, map] : card.device_maps) {
      if (!ranks.contains(worker)) {
        throw UsageError(concat("rpc::init: worker '", card.name, "' has a device map for '",
                                worker, "', which is no worker"));
      }
      check_map(card.name, worker, map);
    }
  }
}

DevicePlan plan_devices(const std::vector<WorkerDescription>& cards, int rank) {
  const WorkerDescription& own = cards[static_cast<std::size_t>(rank)];
  DevicePlan plan;
  const auto add_device = [&](const c10::Device& device) {
    if (std::ranges::find(plan.devices, device) == plan.devices.end())
      plan.devices.push_back(device);
  };
  for (const auto& [worker, map] : own.device_maps) {
    for (const auto& [from, to] : map) add_device(from);
  }
  for (const WorkerDescription& card : cards) {
    const auto towards_us = card.device_maps.find(own.name);
    if (towards_us == card.device_maps.end()) continue;
    for (const auto& [from, to] : towards_us->second) {
      plan.reverse[card.name].insert_or_assign(to, from);
      add_device(to);
    }
  }
  return plan;
}

}  // namespace lockstep::rpc::inline internal
