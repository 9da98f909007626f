#pragma once

#include <optional>
#include <string>

namespace lockstep::rpc::inline internal {

/// Errors of LibTorch's agent differ only in their text.
bool is_connection_error(const std::string& message);
bool is_timeout(const std::string& message);

/// Texts of LocalTransport's errors, which the two functions above recognize.
inline constexpr const char* kConnectionEnded = "[connection ended]";
inline constexpr const char* kTimeoutMark = "RPCErr:1:";

/// Text that a worker reports in place of a connection error to a third worker, so that the reader
/// knows which worker is lost; and the rank in such a text.
std::string lost_worker_text(int rank);
std::optional<int> lost_worker_in(const std::string& message);

/// Marks an error as reported by another worker, whatever its text.
std::string reported_text(const std::string& message);
/// Removes the mark, for users.
std::string without_mark(const std::string& message);

}  // namespace lockstep::rpc::inline internal
