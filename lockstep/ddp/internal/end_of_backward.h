#pragma once

#include <functional>

namespace lockstep::inline internal {

/// Calls `action` once, when the backward pass that is under way ends: the outermost one, where a
/// module runs a backward pass of its own within (activation checkpointing).
/// Threads: on one of autograd's, from a hook; `action` runs on the thread that ends the pass.
/// Limit: autograd runs what is nested more than 60 deep on threads of their own, where the end of
/// such a pass is taken for that of the outermost.
void at_end_of_backward(std::function<void()> action);

}  // namespace lockstep::inline internal
