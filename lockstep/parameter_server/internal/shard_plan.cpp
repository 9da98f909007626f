#include "lockstep/parameter_server/internal/shard_plan.h"

#include <algorithm>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::parameter_server::inline internal {
namespace {

void check_server(int server, int servers) {
  if (server >= 0 && server < servers) return;
  throw UsageError(concat("parameter server ", server, " of ", servers, ": there is none"));
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

}  // namespace lockstep::parameter_server::inline internal
