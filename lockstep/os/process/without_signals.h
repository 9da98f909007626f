#pragma once

#include <signal.h>

namespace lockstep::inline internal {

/// While it lives this thread takes no signals but those of its own faults; a thread that is made
/// meanwhile neither. Threads: the one that made it.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
      sigdelset(&all, fault);
    }
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~WithoutSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace lockstep::inline internal
