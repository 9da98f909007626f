#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <c10/util/FunctionRef.h>
#include <c10/util/intrusive_ptr.h>

#include "lockstep/comm/internal/call_signature.h"
#include "lockstep/comm/internal/native_backend.h"
#include "lockstep/comm/internal/tensor_check.h"
#include "lockstep/comm/internal/work_state.h"
#include "lockstep/comm/process_group.h"

/// Every call of the backend: numbers it, names it for errors, compares it with the other ranks'
/// calls if the group does so, starts it with the remaining time, and waits for it unless it is
/// asynchronous.
namespace lockstep::inline internal {

/// Starts the backend's part of a call.
using StartWork =
    c10::function_ref<c10::intrusive_ptr<c10d::Work>(NativeBackend&, const CallTerms&)>;

/// Starts a collective. Starts nothing in a group of one rank, and if the signature moves no
/// elements; ranks that differ in that are still detected.
/// Errors: UsageError on every rank if ranks made different calls; else as Work::wait.
Work start_collective(const CallSite& call, const CallSignature& signature,
                      const CollectiveOptions& options, StartWork start);

/// Elements to and from each rank, for collectives in which each pair of ranks may have its own
/// size.
struct ExchangeCounts {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
};

/// Like start_collective, with a check of each pair of ranks.
Work start_exchange(const CallSite& call, const CallSignature& signature,
                    const ExchangeCounts& counts, const CollectiveOptions& options,
                    StartWork start);

/// What each rank sends about a call before it runs.
struct CheckMessage {
  CallSignature call = {};
  std::array<double, 2> numbers = {};  ///< not compared
};

/// A running exchange of CheckMessages.
struct StartedCheck {
  CollectiveName name = {};
  at::Tensor all = {};
  Work work = {};
};

/// Sends this rank's message, without waiting.
StartedCheck start_check(const CallSite& call, const CheckMessage& message);

/// Waits for the messages of all ranks.
/// Errors: UsageError on every rank if calls differ.
std::vector<CheckMessage> finish_check(const StartedCheck& check);

/// Like start_collective, for ranks that are known to make the same call, of `numel` elements: it
/// is not compared, unless the backend itself does.
Work start_agreed(const CallSite& call, std::int64_t numel, const CollectiveOptions& options,
                  StartWork start);

/// Starts a message to or from a peer, or from any; it is not compared with the peer's.
Work start_message(const CallSite& call, const at::Tensor& tensor, std::optional<int> peer,
                   const CollectiveOptions& options, StartWork start);

}  // namespace lockstep::inline internal
