#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/rpc/internal/value_codec.h"

namespace lockstep::rpc::inline internal {

/// Bytes and tensors, as the agent carries them.
struct Parcel {
  std::vector<char> bytes;
  std::vector<at::Tensor> tensors;
};

/// The place of a call, or of its answer, in a distributed autograd context.
struct AutogradTag {
  std::int64_t context = 0;
  std::int64_t message = 0;
};

/// What one worker asks of another.
struct CallRequest {
  enum class Kind : std::uint8_t {
    kCall,          ///< the function's result comes back
    kRemote,        ///< the result stays, under `rref`, which the caller holds
    kMethod,        ///< as kCall; the value of `object` is the first argument
    kRemoteMethod,  ///< as kRemote; the value of `object` is the first argument
    kFetch,         ///< the value of `object`
    kHold,          ///< worker `holder` holds `rref` from now on, once more
    kRelease,       ///< `holder` holds `rref` once less
    kHello,         ///< nothing: connects the two
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

/// What comes back.
struct CallAnswer {
  std::optional<AutogradTag> autograd = std::nullopt;
  /// Of the error that ended the call, if one did: the name of its type, and what it says.
  std::string error_type = {};
  std::string error = {};
  c10::IValue value = {};
};

/// Why a message is refused, by either side.
std::string too_large(std::size_t size_bytes, std::int64_t max_message_bytes);

/// `context` names RRefs among the values; what it holds afterwards is the parcel's.
Parcel write_request(const CallRequest& request, ValueContext context);
Parcel write_answer(const CallAnswer& answer, ValueContext context);

/// Of a parcel that anybody may have sent. `context` makes RRefs; its tensors are taken from the
/// parcel. Errors: UsageError saying what is wrong with it.
CallRequest read_request(const Parcel& parcel, ValueContext context);
CallAnswer read_answer(const Parcel& parcel, ValueContext context);

}  // namespace lockstep::rpc::inline internal
