#pragma once

#include <optional>
#include <string>

namespace lockstep::rpc::inline internal {

/// LibTorch's agent tells errors apart by their text alone.
bool is_connection_error(const std::string& message);
bool is_timeout(const std::string& message);

/// What LocalTransport's errors say, so that the two above know them.
inline constexpr const char* kConnectionEnded = "[connection ended]";
inline constexpr const char* kTimeoutMark = "RPCErr:1:";

/// What a worker says in place of an error of a connection to a third one, so that who hears of it
/// knows which is gone; and the rank that such a text names.
std::string lost_worker_text(int rank);
std::optional<int> lost_worker_in(const std::string& message);

/// Marks an error as one that another worker reported, whatever its words.
std::string reported_text(const std::string& message);
/// Without that mark, for users.
std::string without_mark(const std::string& message);

}  // namespace lockstep::rpc::inline internal
