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

/// How every call goes out to the backend: counted, named for errors, checked against the other
/// ranks' where the group does so, started with what is left of its time, and waited for unless it
/// is asynchronous.
namespace lockstep::inline internal {

/// Starts the backend's part of a call, on the terms given.
using StartWork =
    c10::function_ref<c10::intrusive_ptr<c10d::Work>(NativeBackend&, const CallTerms&)>;

/// In a group of one rank there is no backend: nothing is started. Nor is it where the signature
/// says that nothing is to be moved; ranks that do not agree on that are found all the same.
/// Errors: UsageError on every rank when ranks made different calls; else as Work::wait.
Work start_collective(const CallSite& call, const CallSignature& signature,
                      const CollectiveOptions& options, StartWork start);

/// Elements to and from each rank, for the calls in which every pair of ranks may have its own.
struct ExchangeCounts {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
};

/// As start_collective, where ranks must agree pair by pair.
Work start_exchange(const CallSite& call, const CallSignature& signature,
                    const ExchangeCounts& counts, const CollectiveOptions& options,
                    StartWork start);

/// What every rank tells the others of a call before it is made.
struct CheckMessage {
  CallSignature call = {};
  std::array<double, 2> numbers = {};  ///< not compared
};

struct StartedCheck {
  CollectiveName name = {};
  at::Tensor all = {};
  Work work = {};
};

/// Tells the others; waits for nobody.
StartedCheck start_check(const CallSite& call, const CheckMessage& message);

/// Waits for what all ranks have told. Errors: UsageError on every rank where calls differ.
std::vector<CheckMessage> finish_check(const StartedCheck& check);

/// As start_collective, where the ranks are known to make the same call, of so many elements: it is
/// not compared, unless the backend itself does.
Work start_agreed(const CallSite& call, std::int64_t numel, const CollectiveOptions& options,
                  StartWork start);

/// A message to a peer or from one, or from any: not checked against the peer's.
Work start_message(const CallSite& call, const at::Tensor& tensor, std::optional<int> peer,
                   const CollectiveOptions& options, StartWork start);

}  // namespace lockstep::inline internal
