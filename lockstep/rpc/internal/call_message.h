#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/rpc/internal/value_codec.h"

namespace lockstep::rpc::inline internal {

/// Bytes and tensors, as the agent transports them.
struct MessageData {
  std::vector<char> bytes;
  std::vector<at::Tensor> tensors;
};

/// Identifies a call, or its reply, in a distributed autograd context.
struct AutogradTag {
  std::int64_t context = 0;
  std::int64_t message = 0;
};

/// A request of one worker to another.
struct CallRequest {
  enum class Kind : std::uint8_t {
    kCall,          ///< returns the function's result
    kRemote,        ///< keeps the result as `rref`, which the caller holds
    kMethod,        ///< as kCall, with the value of `object` as first argument
    kRemoteMethod,  ///< as kRemote, with the value of `object` as first argument
    kFetch,         ///< returns the value of `object`
    kHold,          ///< adds a hold of worker `holder` on `rref`
    kRelease,       ///< removes a hold of `holder` on `rref`
    kHello,         ///< does nothing: connects the two workers
  };

  Kind kind = Kind::kCall;
  std::int32_t from = 0;  ///< rank of the caller
  std::optional<AutogradTag> autograd = std::nullopt;
  RRefKey rref = {};
  RRefKey object = {};
  std::int32_t holder = 0;
  std::string function = {};
  std::vector<c10::IValue> arguments = {};
};

/// The reply to a request.
struct CallReply {
  std::optional<AutogradTag> autograd = std::nullopt;
  /// If the call failed: type and message of the error.
  std::string error_type = {};
  std::string error = {};
  c10::IValue value = {};
};

/// Error text for a message that either side refuses.
std::string too_large(std::size_t size_bytes, std::int64_t max_message_bytes);

/// Serializes a message. `context` names RRefs among the values; its tensors become the parcel's.
MessageData write_request(const CallRequest& request, ValueContext context);
MessageData write_answer(const CallReply& answer, ValueContext context);

/// Parses a message of an untrusted parcel. `context` makes RRefs; its tensors are those of the
/// parcel.
/// Errors: UsageError that says what is wrong.
CallRequest read_request(const MessageData& parcel, ValueContext context);
CallReply read_answer(const MessageData& parcel, ValueContext context);

}  // namespace lockstep::rpc::inline internal
