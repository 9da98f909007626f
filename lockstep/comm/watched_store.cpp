#include "lockstep/comm/watched_store.h"

#include <algorithm>

#include <torch/csrc/distributed/c10d/exception.h>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/unnamed_comm_error.h"

namespace lockstep {

using Bytes = std::vector<std::uint8_t>;

template <class Question>
auto WatchedStore::ask(Question question) {
  if (!answers_) C10_THROW_ERROR(DistNetworkError, "Socket Timeout before");
  try {
    return question(*store_);
  } catch (const c10::DistNetworkError& error) {
    if (failure_of(error.what_without_backtrace()) == CommFailure::kTimeout) answers_ = false;
    throw;
  }
}

c10::intrusive_ptr<c10d::Store> WatchedStore::clone() {
  return store_->clone();
}

void WatchedStore::set(const std::string& key, const Bytes& value) {
  store_->set(key, value);
}

Bytes WatchedStore::compareSet(const std::string& key, const Bytes& current, const Bytes& wanted) {
  return ask([&](Store& store) { return store.compareSet(key, current, wanted); });
}

Bytes WatchedStore::get(const std::string& key) {
  wait({key});
  return ask([&](Store& store) { return store.get(key); });
}

std::int64_t WatchedStore::add(const std::string& key, std::int64_t value) {
  return ask([&](Store& store) { return store.add(key, value); });
}

bool WatchedStore::deleteKey(const std::string& key) {
  return ask([&](Store& store) { return store.deleteKey(key); });
}

// Who waits for something else looks here from time to time.
bool WatchedStore::check(const std::vector<std::string>& keys) {
  if (check_) check_();
  return ask([&](Store& store) { return store.check(keys); });
}

std::int64_t WatchedStore::getNumKeys() {
  return ask([&](Store& store) { return store.getNumKeys(); });
}

void WatchedStore::wait(const std::vector<std::string>& keys) {
  wait(keys, store_->getTimeout());
}

// The server answers a wait that has ended with an error, of which nothing is left over.
void WatchedStore::wait(const std::vector<std::string>& keys,
                        const std::chrono::milliseconds& timeout) {
  constexpr std::chrono::milliseconds kSlice{20};
  const auto wait_for = [&](std::chrono::milliseconds time) {
    ask([&](Store& store) { store.wait(keys, time); });
  };
  if (!check_) return wait_for(timeout);
  const Deadline deadline = Deadline::after(timeout);
  for (;;) {
    check_();
    const auto left = deadline.remaining();
    if (timeout > kNoTimeout && left <= kSlice) {
      return wait_for(std::max(left, std::chrono::milliseconds(1)));
    }
    try {
      return wait_for(kSlice);
    } catch (const c10::DistNetworkError&) {
      throw;
    } catch (const c10::Error&) {
      if (!check(keys)) continue;
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
  return ask([&](Store& store) { return store.multiGet(keys); });
}

void WatchedStore::multiSet(const std::vector<std::string>& keys,
                            const std::vector<Bytes>& values) {
  store_->multiSet(keys, values);
}

bool WatchedStore::hasExtendedApi() const {
  return store_->hasExtendedApi();
}

}  // namespace lockstep
