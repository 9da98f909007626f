#include "python/src/own_process.h"

#include <atomic>

#include <pthread.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::python {
namespace {

std::atomic<int> forks{0};

}  // namespace

OwnProcess::OwnProcess() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
  forks_ = forks;
}

void OwnProcess::check(const char* operation, int rank) const {
  if (forks == forks_) return;
  throw UsageError(concat(operation, ": this process was forked from rank ", rank,
                          " and is no rank itself; communicate in the parent, or spawn"));
}

}  // namespace lockstep::python
