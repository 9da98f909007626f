#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/internal/process_group_state.h"

namespace lockstep {

/// Creates a group of two ranks over gloo on this machine, through `store`, as `rank`.
inline ProcessGroup gloo_pair(int rank, c10::intrusive_ptr<c10d::Store> store,
                              std::function<void()> while_waiting) {
  auto state = std::make_shared<ProcessGroup::State>();
  state->rank = rank;
  state->world_size = 2;
  state->name = "pair";
  state->backend_name = "gloo";
  state->local_rank = rank;
  state->local_world_size = 2;
  state->local_address = "127.0.0.1";
  state->timeout = std::chrono::minutes(1);
  state->store = std::move(store);
  state->while_waiting = std::move(while_waiting);
  return make_process_group(std::move(state), std::chrono::minutes(1));
}

}  // namespace lockstep
