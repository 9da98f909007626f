#pragma once

#include <map>
#include <optional>
#include <set>

#include <ATen/core/ivalue.h>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/rpc/internal/value_codec.h"

namespace lockstep::rpc::inline internal {

/// Values that this worker keeps, and the workers that hold references to each. A value is
/// destroyed when its last reference is released.
/// Threads: any; values are destroyed outside of its lock.
class RRefTable {
 public:
  /// Announces a value that is being made, since the worker that requests it may release it, or be
  /// lost, before it exists.
  /// Errors: UsageError for a key in use.
  void expect(const RRefKey& key, int holder);
  /// Inserts an expected value; destroys it at once if no worker holds it any more.
  void insert(const RRefKey& key, c10::IValue value);
  /// The value of a key.
  /// Errors: UsageError if it is not here (yet, or any more).
  c10::IValue value(const RRefKey& key) const;
  /// Adds a hold; does nothing for a lost worker, which would never release it.
  void hold(const RRefKey& key, int holder);
  /// Removes a hold, if there is one.
  void release(const RRefKey& key, int holder);
  /// Releases all holds of a lost worker, and those that are added for it later.
  void note_gone(int holder);

 private:
  struct Kept {
    std::optional<c10::IValue> value;
    std::map<int, int> holders;  ///< number of holds, by worker
  };
  mutable Mutex mutex_;
  std::map<RRefKey, Kept> kept_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<int> gone_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::rpc::inline internal
