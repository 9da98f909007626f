#include "lockstep/parameter_server/internal/shard_plan.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::parameter_server::inline internal {
namespace {

void check_server(int server, int servers) {
  if (server >= 0 && server < servers) return;
  throw UsageError(concat("parameter server ", server, " of ", servers, " does not exist"));
}

// Calls `take` with each part of a parameter that lies in the slice, and where in the slice it is.
template <class Take>
void for_each_part(const std::vector<at::Tensor>& parameters, const Slice& slice, Take&& take) {
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    const std::int64_t end = begin + parameter.numel();
    const std::int64_t first = std::max(begin, slice.begin);
    const std::int64_t last = std::min(end, slice.end);
    if (first < last)
      take(parameter.detach().view(-1).slice(0, first - begin, last - begin), first - slice.begin);
    begin = end;
  }
}

}  // namespace

Slice slice_of(std::int64_t elements, int server, int servers) {
  check_server(server, servers);
  const std::int64_t each = elements / servers;
  const std::int64_t more = elements % servers;  // So many have one more.
  const auto begin_of = [&](std::int64_t index) { return index * each + std::min(index, more); };
  return {begin_of(server), begin_of(server + 1)};
}

std::int64_t rows_of(std::int64_t rows, int server, int servers) {
  check_server(server, servers);
  return (rows - server + servers - 1) / servers;
}

std::vector<Role> assign_roles(const std::vector<int>& before, int servers) {
  if (servers < 1 || before.size() < static_cast<std::size_t>(servers) + 1) {
    throw UsageError(concat("parameter servers: ", before.size(), " ranks for ", servers,
                            " servers; at least one server, and one rank more as trainer"));
  }
  std::vector<std::optional<int>> server_of(before.size());
  std::vector<bool> has_rank(static_cast<std::size_t>(servers));
  for (std::size_t rank = 0; rank < before.size(); ++rank) {
    const int was = before[rank];
    if (was < 0 || was >= servers || has_rank[static_cast<std::size_t>(was)]) continue;
    server_of[rank] = was;
    has_rank[static_cast<std::size_t>(was)] = true;
  }
  for (int server = 0; server < servers; ++server) {
    if (has_rank[static_cast<std::size_t>(server)]) continue;
    for (const bool wants_new : {true, false}) {
      const auto is_free = [&](std::size_t rank) {
        return !server_of[rank] && (before[rank] == kIsNew) == wants_new;
      };
      std::size_t rank = 0;
      while (rank < before.size() && !is_free(rank)) ++rank;
      if (rank == before.size()) continue;
      server_of[rank] = server;
      break;
    }
  }
  std::vector<Role> roles;
  int trainers = 0;
  for (const std::optional<int>& server : server_of) {
    roles.push_back(server ? Role{Role::Kind::kServer, *server}
                           : Role{Role::Kind::kTrainer, trainers++});
  }
  return roles;
}

std::int64_t count_elements(const std::vector<at::Tensor>& parameters) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : parameters) count += parameter.numel();
  return count;
}

at::Tensor read_slice(const std::vector<at::Tensor>& parameters, const Slice& slice) {
  const at::TensorOptions options =
      parameters.empty() ? at::TensorOptions(at::kFloat) : parameters[0].options();
  at::Tensor values = at::empty({slice.size()}, options.requires_grad(false));
  for_each_part(parameters, slice, [&](const at::Tensor& part, std::int64_t place) {
    values.narrow(0, place, part.numel()).copy_(part);
  });
  return values;
}

void write_slice(const std::vector<at::Tensor>& parameters, const Slice& slice,
                 const at::Tensor& values) {
  for_each_part(parameters, slice, [&](const at::Tensor& part, std::int64_t place) {
    part.copy_(values.narrow(0, place, part.numel()));
  });
}

}  // namespace lockstep::parameter_server::inline internal
