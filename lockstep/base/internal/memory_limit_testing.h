#pragma once

#include <cstdint>
#include <cstdio>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"

namespace lockstep {

/// Whether `call` returns, or throws a Lockstep error, in a forked process that may allocate only
/// `bytes` bytes more than this one has. Without a limit under sanitizers, which need memory of
/// their own.
template <class Call>
bool fits_in(std::uint64_t bytes, const Call& call) {
  const pid_t child = ::fork();
  if (child == 0) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    unsigned long pages = 0;
    std::FILE* const sizes = std::fopen("/proc/self/statm", "r");
    if (sizes == nullptr || std::fscanf(sizes, "%lu", &pages) != 1) ::_exit(2);
    std::fclose(sizes);
    const rlim_t limit = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + bytes;
    const rlimit limits{.rlim_cur = limit, .rlim_max = limit};
    if (::setrlimit(RLIMIT_AS, &limits) != 0) ::_exit(2);
#else
    static_cast<void>(bytes);
#endif
    try {
      call();
    } catch (const Error&) {
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

}  // namespace lockstep
