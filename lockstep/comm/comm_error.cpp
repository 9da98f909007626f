#include <array>
#include <exception>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/error_text.h"
#include "lockstep/comm/launcher_notice.h"
#include "lockstep/comm/unnamed_comm_error.h"
#include "lockstep/comm/work_state.h"

namespace lockstep {
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
  const std::string head = concat(describe(name), ": ");
  switch (failure_of(what)) {
    case CommFailure::kTimeout: {
      const bool is_explained = tell_launcher_of_late_rank(name);
      const std::string others = report_hang ? report_hang(is_explained) : std::string();
      throw TimeoutError(concat(head, "not complete within ", name.timeout.count(),
                                " ms; a rank is stuck, stopped or did not make this call",
                                others.empty() ? "" : ": ", others, " (", reason, ")"));
    }
    case CommFailure::kPeerLost:
      throw PeerLost(
          concat(head, "a peer is gone; look for the rank that failed first (", reason, ")"));
    case CommFailure::kOther:
      break;
  }
  throw CommError(concat(head, reason));
}

[[noreturn]] void throw_named(const CollectiveName& name, const UnnamedCommError& error) {
  const std::string text = concat(describe(name), ": ", error.what());
  switch (error.failure()) {
    case CommFailure::kTimeout:
      tell_launcher_of_late_rank(name);
      throw TimeoutError(text);
    case CommFailure::kPeerLost:
      throw PeerLost(text);
    case CommFailure::kOther:
      break;
  }
  throw CommError(text);
}

}  // namespace

CommFailure failure_of(std::string_view text) {
  if (contains_any(text, kTimeoutWords)) return CommFailure::kTimeout;
  return contains_any(text, kPeerLostWords) ? CommFailure::kPeerLost : CommFailure::kOther;
}

std::string describe(const CollectiveName& name) {
  const std::string number = name.sequence ? concat(" number ", *name.sequence) : std::string();
  return concat(name.operation, number, " of group '", name.group, "' on rank ", name.rank);
}

void rethrow_named(const CollectiveName& name, const ReportHang& report_hang) {
  try {
    throw;
  } catch (const TimeoutError&) {
    tell_launcher_of_late_rank(name);
    throw;
  } catch (const Error&) {
    throw;
  } catch (const UnnamedCommError& error) {
    throw_named(name, error);
  } catch (const std::exception& error) {
    throw_named(name, error_text(error), report_hang);
  }
}

}  // namespace lockstep
