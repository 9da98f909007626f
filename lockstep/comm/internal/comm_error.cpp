#include "lockstep/comm/internal/comm_error.h"

#include <array>
#include <exception>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/error_text.h"
#include "lockstep/comm/internal/launcher_notice.h"
#include "lockstep/comm/internal/work_state.h"

namespace lockstep::inline internal {
namespace {

// Backends report by text alone; these are the words of Gloo, NCCL and c10d.
constexpr std::array<std::string_view, 5> kTimeoutWords = {"imed out", "imeout", "imedout",
                                                           "eadline", "Application timeout"};
constexpr std::array<std::string_view, 9> kPeerLostWords = {"Connection closed by peer",
                                                            "Connection reset by peer",
                                                            "Broken pipe",
                                                            "Connection refused",
                                                            "Socket closed",
                                                            "remote process exited",
                                                            "remote error",
                                                            "Connection closed",
                                                            "Failed to recv"};

template <class Words>
bool contains_any(std::string_view text, const Words& words) {
  for (const std::string_view word : words) {
    if (text.find(word) != std::string_view::npos) return true;
  }
  return false;
}

// The first sentence, without the file and line of the backend's source in front.
std::string first_line(std::string_view text) {
  text = text.substr(0, text.find('\n'));
  if (!text.empty() && text.front() == '[') {
    const auto end = text.find("] ");
    if (end != std::string_view::npos) text.remove_prefix(end + 2);
  }
  return std::string(text.substr(0, text.find(". ")));
}

[[noreturn]] void throw_named(const CollectiveName& name, std::string_view what,
                              const ReportHang& report_hang) {
  const std::string reason = first_line(what);
  switch (failure_of(what)) {
    case CommFailure::kTimeout: {
      const bool is_explained = notify_launcher_of_late_rank(name);
      HangReport others = report_hang ? report_hang(is_explained) : HangReport();
      throw TimeoutError(fields_of(name, std::move(others.ranks)),
                         concat("not complete within ", name.timeout.count(),
                                " ms; a rank is stuck, stopped or did not make this call",
                                others.text.empty() ? "" : ": ", others.text, " (", reason, ")"));
    }
    case CommFailure::kPeerLost:
      throw PeerLost(fields_of(name),
                     concat("a peer is gone; look for the rank that failed first (", reason, ")"));
    case CommFailure::kOther:
      break;
  }
  throw CommError(fields_of(name), reason);
}

[[noreturn]] void throw_named(const CollectiveName& name, const UnnamedCommError& error) {
  const ErrorFields fields = fields_of(name, error.ranks());
  switch (error.failure()) {
    case CommFailure::kTimeout:
      notify_launcher_of_late_rank(name);
      throw TimeoutError(fields, error.what());
    case CommFailure::kPeerLost:
      throw PeerLost(fields, error.what());
    case CommFailure::kOther:
      break;
  }
  throw CommError(fields, error.what());
}

}  // namespace

CommFailure failure_of(std::string_view text) {
  if (contains_any(text, kTimeoutWords)) return CommFailure::kTimeout;
  return contains_any(text, kPeerLostWords) ? CommFailure::kPeerLost : CommFailure::kOther;
}

ErrorFields fields_of(const CollectiveName& name, std::vector<int> ranks) {
  if (ranks.empty() && name.peer) ranks = {*name.peer};
  return {.operation = name.operation,
          .group = name.group,
          .own_rank = name.rank,
          .sequence = name.sequence,
          .timeout = name.timeout,
          .ranks = std::move(ranks)};
}

std::string describe(const CollectiveName& name) {
  return describe(fields_of(name));
}

void rethrow_named(const CollectiveName& name, const ReportHang& report_hang,
                   GroupFailure* failure) {
  if (failure != nullptr) {
    try {
      rethrow_named(name, report_hang);
    } catch (const OperationError&) {
      failure->rethrow();
    }
  }
  try {
    throw;
  } catch (const TimeoutError&) {
    notify_launcher_of_late_rank(name);
    throw;
  } catch (const Error&) {
    throw;
  } catch (const UnnamedCommError& error) {
    throw_named(name, error);
  } catch (const std::exception& error) {
    throw_named(name, error_text(error), report_hang);
  }
}

}  // namespace lockstep::inline internal
