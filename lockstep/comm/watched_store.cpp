#include "lockstep/comm/watched_store.h"

#include <algorithm>

#include "lockstep/base/deadline.h"

namespace lockstep {

using Bytes = std::vector<std::uint8_t>;

c10::intrusive_ptr<c10d::Store> WatchedStore::clone() {
  return store_->clone();
}

void WatchedStore::set(const std::string& key, const Bytes& value) {
  store_->set(key, value);
}

Bytes WatchedStore::compareSet(const std::string& key, const Bytes& current, const Bytes& wanted) {
  return store_->compareSet(key, current, wanted);
}

Bytes WatchedStore::get(const std::string& key) {
  wait({key});
  return store_->get(key);
}

std::int64_t WatchedStore::add(const std::string& key, std::int64_t value) {
  return store_->add(key, value);
}

bool WatchedStore::deleteKey(const std::string& key) {
  return store_->deleteKey(key);
}

bool WatchedStore::check(const std::vector<std::string>& keys) {
  return store_->check(keys);
}

std::int64_t WatchedStore::getNumKeys() {
  return store_->getNumKeys();
}

void WatchedStore::wait(const std::vector<std::string>& keys) {
  wait(keys, store_->getTimeout());
}

// The server answers a wait that has ended with an error, of which nothing is left over.
void WatchedStore::wait(const std::vector<std::string>& keys,
                        const std::chrono::milliseconds& timeout) {
  constexpr std::chrono::milliseconds kSlice{20};
  if (!check_) return store_->wait(keys, timeout);
  const Deadline deadline = Deadline::after(timeout);
  for (;;) {
    check_();
    const auto left = deadline.remaining();
    if (timeout > kNoTimeout && left <= kSlice) {
      return store_->wait(keys, std::max(left, std::chrono::milliseconds(1)));
    }
    try {
      return store_->wait(keys, kSlice);
    } catch (const c10::Error&) {
      if (!store_->check(keys)) continue;
      return;
    }
  }
}

const std::chrono::milliseconds& WatchedStore::getTimeout() const noexcept {
  return store_->getTimeout();
}

void WatchedStore::setTimeout(const std::chrono::milliseconds& timeout) {
  store_->setTimeout(timeout);
}

void WatchedStore::append(const std::string& key, const Bytes& value) {
  store_->append(key, value);
}

std::vector<Bytes> WatchedStore::multiGet(const std::vector<std::string>& keys) {
  wait(keys);
  return store_->multiGet(keys);
}

void WatchedStore::multiSet(const std::vector<std::string>& keys,
                            const std::vector<Bytes>& values) {
  store_->multiSet(keys, values);
}

bool WatchedStore::hasExtendedApi() const {
  return store_->hasExtendedApi();
}

}  // namespace lockstep
