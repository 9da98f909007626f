#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::inline internal {

/// Requests to etcd and its answers, as the JSON of its version 3 gateway: keys and values in
/// base64, 64-bit numbers as texts, which are kept as such.
/// Source: etcd's documentation, "gRPC gateway" and "etcd3 API".
namespace etcd {

/// What is asked for at a path below the address of the gateway.
struct Request {
  const char* path = "";
  std::string body{};
};

/// What the agents of one job keep there.
struct Keys {
  std::string leader{};
  std::string state{};
};
Keys keys_of(const std::string& prefix, const std::string& job);

struct Value {
  std::string text{};
  /// The revision at which the key was made: each time another.
  std::string created{};
  /// The revision at which it was last written.
  std::string written{};
};

/// A key that is bound to a lease vanishes when nobody has renewed it for `time_to_live`, in whole
/// seconds.
Request grant_lease(std::chrono::seconds time_to_live);
Request renew_lease(const std::string& lease);
Request end_lease(const std::string& lease);
/// Of grant_lease: the lease. Of renew_lease: nothing once it has ended.
std::optional<std::string> lease_in(std::string_view answer);

/// The two leases of one that would lead: of its leadership, and of the state.
struct Leases {
  std::string leader{};
  std::string state{};
};

Request read_leader(const Keys& keys);
/// Makes the leader's key, unless there is one.
Request campaign(const Keys& keys, const std::string& record, const std::string& lease);
struct Campaign {
  bool is_won = false;
  std::optional<Value> leader{};
  /// Of one that is won: what the leader before has left.
  std::optional<Value> state{};
};
/// Of read_leader and campaign; nothing for a text that is no answer.
std::optional<Campaign> campaign_in(std::string_view answer);

/// Where a state may be written.
struct Writing {
  /// The leader's key is still the one that was made at this revision.
  std::string created{};
  /// The state is still the one that was written at this; "0": there is none. So a write that is
  /// held up on its way does not undo one that was made after it.
  std::string written{};
};
Request save(const Keys& keys, const Writing& where, const std::string& state,
             const std::string& lease);
struct Saved {
  bool is_done = false;
  /// Not done: the revision at which the leader's key was made; empty: there is none.
  std::string created{};
  /// The revision at which the state that is there was written; "0": there is none.
  std::string written{};
};
/// Of save; nothing for a text that is no answer.
std::optional<Saved> saved_in(std::string_view answer);

/// Why etcd refused, in its words; empty: it did not.
std::string refusal_in(std::string_view answer);

}  // namespace etcd
}  // namespace lockstep::inline internal
