#include "lockstep/rpc/internal/rref_table.h"

#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::rpc::inline internal {
namespace {

[[noreturn]] void throw_not_kept(const RRefKey& key) {
  throw UsageError(concat("rank ", key.owner, " keeps no value ", key.creator, ":", key.number,
                          " (yet, or any more)"));
}

}  // namespace

void RRefTable::expect(const RRefKey& key, int holder) {
  const MutexLock lock(mutex_);
  if (gone_.contains(holder)) return;
  const auto [kept, is_new] = kept_.try_emplace(key);
  if (!is_new)
    throw UsageError(concat("a value ", key.creator, ":", key.number, " is kept already"));
  kept->second.holders[holder] = 1;
}

void RRefTable::insert(const RRefKey& key, c10::IValue value) {
  const MutexLock lock(mutex_);
  const auto found = kept_.find(key);
  if (found != kept_.end()) found->second.value = std::move(value);
}

c10::IValue RRefTable::value(const RRefKey& key) const {
  const MutexLock lock(mutex_);
  const auto found = kept_.find(key);
  if (found == kept_.end() || !found->second.value) throw_not_kept(key);
  return *found->second.value;
}

void RRefTable::hold(const RRefKey& key, int holder) {
  const MutexLock lock(mutex_);
  const auto found = kept_.find(key);
  if (found == kept_.end()) throw_not_kept(key);
  if (!gone_.contains(holder)) ++found->second.holders[holder];
}

void RRefTable::release(const RRefKey& key, int holder) {
  std::optional<c10::IValue> gone;
  const MutexLock lock(mutex_);
  const auto found = kept_.find(key);
  if (found == kept_.end()) return;
  auto& holders = found->second.holders;
  const auto held = holders.find(holder);
  if (held == holders.end()) return;
  if (--held->second == 0) holders.erase(held);
  if (!holders.empty()) return;
  gone = std::move(found->second.value);
  kept_.erase(found);
}

void RRefTable::note_gone(int holder) {
  std::vector<std::optional<c10::IValue>> gone;
  const MutexLock lock(mutex_);
  gone_.insert(holder);
  for (auto entry = kept_.begin(); entry != kept_.end();) {
    entry->second.holders.erase(holder);
    if (entry->second.holders.empty()) {
      gone.push_back(std::move(entry->second.value));
      entry = kept_.erase(entry);
    } else {
      ++entry;
    }
  }
}

}  // namespace lockstep::rpc::inline internal
