#include "lockstep/os/life_mark.h"

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kWaitersBit = 0x80000000U;  // FUTEX_WAITERS

// glibc and the kernel keep the holder's thread id in the first word of a robust mutex. Only a
// shortcut: where a libc does otherwise the words never agree and the mutex itself is asked.
std::uint32_t first_word(const pthread_mutex_t& mutex) {
  return __atomic_load_n(reinterpret_cast<const std::uint32_t*>(&mutex), __ATOMIC_ACQUIRE) &
         ~kWaitersBit;
}

void check(const char* operation, int status) {
  if (status != 0) throw SystemError(operation, status);
}

}  // namespace

void LifeMark::hold() {
  pthread_mutexattr_t attributes;
  check("making a robust mutex", ::pthread_mutexattr_init(&attributes));
  check("making a robust mutex",
        ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED));
  check("making a robust mutex", ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
  check("making a robust mutex", ::pthread_mutex_init(&mutex_, &attributes));
  ::pthread_mutexattr_destroy(&attributes);
  check("locking a robust mutex", ::pthread_mutex_lock(&mutex_));
  holder_word_.store(first_word(mutex_), std::memory_order_release);
}

bool LifeMark::let_go() noexcept {
  return ::pthread_mutex_unlock(&mutex_) == 0;
}

bool LifeMark::is_held() noexcept {
  const std::uint32_t held = holder_word_.load(std::memory_order_acquire);
  if (held == 0) return false;
  if (first_word(mutex_) == held) return true;
  const int status = ::pthread_mutex_trylock(&mutex_);
  if (status == 0 || status == EOWNERDEAD) ::pthread_mutex_unlock(&mutex_);
  return status == EBUSY;
}

}  // namespace lockstep
