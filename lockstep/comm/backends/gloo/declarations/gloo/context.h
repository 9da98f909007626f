#pragma once

#include <chrono>

namespace gloo {

// The members that are called from outside Gloo; defined in libtorch_cpu. Never created or
// destroyed here, so its layout does not matter.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};

}  // namespace gloo
