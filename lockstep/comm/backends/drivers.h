#pragma once

#include <vector>

#include "lockstep/base/internal/mutex.h"

namespace lockstep::inline internal {

/// The objects of this process, of one kind, that advance their groups' calls. There is no thread:
/// while one of them waits, the others advance too, so that a peer that waits for this process in
/// another group is not blocked.
/// Threads: any.
template <class Driver>
class Drivers {
 public:
  static Drivers& instance() {
    static auto* const drivers = new Drivers();  // never destroyed
    return *drivers;
  }

  void add(Driver* driver) {
    const MutexLock lock(mutex_);
    all_.push_back(driver);
  }

  void remove(Driver* driver) {
    const MutexLock lock(mutex_);
    std::erase(all_, driver);
  }

  /// Calls advance_if_free() of each except `self`. Returns whether any has a running call.
  bool advance_all_but(const Driver* self) {
    const MutexLock lock(mutex_);
    bool any_busy = false;
    for (Driver* const driver : all_) {
      if (driver != self && driver->advance_if_free()) any_busy = true;
    }
    return any_busy;
  }

 private:
  Mutex mutex_;
  std::vector<Driver*> all_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::inline internal
