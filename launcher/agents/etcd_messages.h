#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::inline internal {

/// Requests to etcd and its answers, in JSON of its v3 gateway: keys and values in base64, 64-bit
/// numbers as texts, which stay texts here.
/// Source: etcd's documentation, "gRPC gateway" and "etcd3 API".
namespace etcd {

/// A request to a path below the gateway's address.
struct Request {
  const char* path = "";
  std::string body{};
};

/// Keys of one job: the leader's record and the job's state.
struct Keys {
  std::string leader{};
  std::string state{};
};
Keys keys_of(const std::string& prefix, const std::string& job);

/// A value with its revisions.
struct Value {
  std::string text{};
  /// Revision at which the key was created.
  std::string created{};
  /// Revision at which it was last written.
  std::string written{};
};

/// Requests about leases. A key with a lease is deleted when no agent has renewed the lease for
/// `time_to_live`, in whole seconds.
Request grant_lease(std::chrono::seconds time_to_live);
Request renew_lease(const std::string& lease);
Request end_lease(const std::string& lease);
/// The lease in the answer to grant_lease; for renew_lease: nothing if the lease has ended.
std::optional<std::string> lease_in(std::string_view answer);

/// The two leases of a candidate: of its leadership and of the state.
struct Leases {
  std::string leader{};
  std::string state{};
};

Request read_leader(const Keys& keys);
/// Creates the leader's key, unless it exists.
Request campaign(const Keys& keys, const std::string& record, const std::string& lease);
/// Answer to read_leader and campaign.
struct Campaign {
  bool is_won = false;
  std::optional<Value> leader{};
  /// If won: the state that the leader before left.
  std::optional<Value> state{};
};
/// Decodes the answer to read_leader and campaign; nothing for other texts.
std::optional<Campaign> campaign_in(std::string_view answer);

/// Conditions of a write of the state.
struct Writing {
  /// The leader's key is still the one created at this revision.
  std::string created{};
  /// The state is still the one written at this revision; "0": none. So a delayed write does not
  /// undo a later one.
  std::string written{};
};
Request save(const Keys& keys, const Writing& where, const std::string& state,
             const std::string& lease);
/// Answer to save.
struct Saved {
  bool is_done = false;
  /// If not done: revision at which the leader's key was created; empty: there is none.
  std::string created{};
  /// Revision of the current state; "0": there is none.
  std::string written{};
};
/// Decodes the answer to save; nothing for other texts.
std::optional<Saved> saved_in(std::string_view answer);

/// etcd's reason for a refusal; empty: it did not refuse.
std::string refusal_in(std::string_view answer);

}  // namespace etcd
}  // namespace lockstep::inline internal
