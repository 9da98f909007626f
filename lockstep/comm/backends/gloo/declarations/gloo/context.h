#pragma once

#include <chrono>
#include <memory>

namespace gloo {

namespace transport {
class Pair;
}

// The members that are called from outside Gloo; defined in libtorch_cpu. Never created or
// destroyed here, so its layout does not matter.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
  std::unique_ptr<transport::Pair>& getPair(int rank);
};

}  // namespace gloo
