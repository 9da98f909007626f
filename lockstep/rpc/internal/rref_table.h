#pragma once

#include <map>
#include <optional>
#include <set>

#include <ATen/core/ivalue.h>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/rpc/internal/value_codec.h"

namespace lockstep::rpc::inline internal {

/// The values that this worker keeps for others, and who holds a reference to each: a value goes
/// when the last one is released. Threads: any; values are destroyed outside of its lock.
class RRefTable {
 public:
  /// A value that is about to be made: the worker that asks for it may release it, or be gone,
  /// before it is there.
  /// Errors: UsageError for a key that is taken.
  void expect(const RRefKey& key, int holder);
  /// Of one that is expected; where nobody holds it any more, it goes.
  void insert(const RRefKey& key, c10::IValue value);
  /// Errors: UsageError for a value that is not here (yet, or any more).
  c10::IValue value(const RRefKey& key) const;
  /// Nothing for a worker that is gone: it would give nothing back.
  void hold(const RRefKey& key, int holder);
  /// Nothing where it is not held.
  void release(const RRefKey& key, int holder);
  /// Releases all that a worker held, which is gone, and all that others hold for it later.
  void note_gone(int holder);

 private:
  struct Kept {
    std::optional<c10::IValue> value;
    std::map<int, int> holders;  ///< how often each holds it
  };
  mutable Mutex mutex_;
  std::map<RRefKey, Kept> kept_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<int> gone_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::rpc::inline internal
