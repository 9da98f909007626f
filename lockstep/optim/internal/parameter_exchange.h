#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/internal/exchange_rounds.h"

namespace lockstep::inline internal {

/// A parameter with the rank that updates it.
struct OwnedParameter {
  at::Tensor tensor;
  /// The rank that sends its values.
  int owner = 0;
};

/// Sends parameters from their owners to every rank, in few messages: large parameters in place,
/// small ones joined per owner. All ranks must have parameters of the same dtypes, shapes and
/// strides, with the same owners.
/// Threads: one at a time.
/// Lifetime: keeps the group and the parameters alive.
/// Errors: as Work::wait.
class ParameterExchange {
 public:
  struct Options {
    /// Make the parameters views of contiguous memory that is exchanged, so that nothing is copied
    /// except between ranks.
    bool as_bucket_view = false;
  };

  ParameterExchange(ProcessGroup group, const std::vector<OwnedParameter>& parameters,
                    const Options& options);

  /// Collective.
  void run();

 private:
  struct Message {
    std::vector<at::Tensor> parameters = {};
    /// What is sent; undefined: the parameter itself.
    at::Tensor memory = {};
    /// Views of `memory` in the shapes of the parameters; empty if the parameters are these views.
    std::vector<at::Tensor> places = {};
    std::int64_t bytes = 0;
  };

  void add_messages(const std::vector<OwnedParameter>& parameters);
  /// Whether it is one parameter that needs no copy.
  bool travels_as_it_lies(const Message& message) const;
  void allocate(Message& message) const;
  void check_views(const Message& message) const;
  at::Tensor part_of(int owner, const MessagePart& part, std::int64_t bytes) const;

  ProcessGroup group_;
  bool as_bucket_view_;
  std::vector<std::vector<Message>> messages_;  ///< By owner.
  std::vector<ExchangeRound> rounds_;
};

}  // namespace lockstep::inline internal
