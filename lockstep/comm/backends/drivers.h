#pragma once

#include <vector>

#include "lockstep/base/internal/mutex.h"

namespace lockstep::inline internal {

/// The objects of this process that move a group's calls on, of one kind. There is no thread behind
/// them: while one waits, the others go on, so that a peer that waits for this process in another
/// group is not kept waiting by this one. Threads: any.
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

  /// Calls advance_if_free() of each. Returns whether any has something under way.
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
