#include "lockstep/comm/internal/watched_store.h"

#include <algorithm>
#include <atomic>

#include <torch/csrc/distributed/c10d/exception.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/internal/comm_error.h"
#include "lockstep/comm/internal/run_watched.h"

namespace lockstep::inline internal {

using Bytes = std::vector<std::uint8_t>;

// What threads need that are left behind with a question.
struct WatchedStore::Connection {
  explicit Connection(c10::intrusive_ptr<c10d::Store> underneath) : store(std::move(underneath)) {}

  c10::intrusive_ptr<c10d::Store> get() {
    const MutexLock lock(mutex);
    if (!store.defined()) C10_THROW_ERROR(DistNetworkError, "Connection closed: the store is left");
    return store;
  }

  template <class Question>
  auto ask(const Question& question) {
    if (!answers) C10_THROW_ERROR(DistNetworkError, "Socket Timeout before");
    try {
      return question(*get());
    } catch (const c10::DistNetworkError& error) {
      if (failure_of(error.what_without_backtrace()) == CommFailure::kTimeout) answers = false;
      throw;
    }
  }

  // The server answers a wait that has ended with an error, of which nothing is left over.
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout,
            const std::atomic<bool>& is_left) {
    constexpr std::chrono::milliseconds kSlice{20};
    const Deadline deadline = Deadline::after(timeout);
    while (!is_left) {
      const auto left = deadline.remaining();
      const bool is_last = timeout > kNoTimeout && left <= kSlice;
      const auto slice = is_last ? std::max(left, std::chrono::milliseconds(1)) : kSlice;
      try {
        return ask([&](Store& underneath) { underneath.wait(keys, slice); });
      } catch (const c10::DistNetworkError&) {
        throw;
      } catch (const c10::Error&) {
        if (is_last) throw;
        if (ask([&](Store& underneath) { return underneath.check(keys); })) return;
      }
    }
  }

  Mutex mutex;
  c10::intrusive_ptr<c10d::Store> store LOCKSTEP_GUARDED_BY(mutex);
  std::atomic<bool> answers = true;
};

WatchedStore::WatchedStore(c10::intrusive_ptr<c10d::Store> store, std::function<void()> check)
    : Store(store->getTimeout()),
      connection_(std::make_shared<Connection>(std::move(store))),
      check_(std::move(check)) {}

void WatchedStore::let_go() {
  const MutexLock lock(connection_->mutex);
  connection_->store.reset();
}

// `question` may outlive this call, and so holds all that it needs.
template <class Question>
auto WatchedStore::ask(Question question) {
  if (!check_) return connection_->ask(question);
  return run_watched([connection = connection_, question = std::move(question)](
                         const std::atomic<bool>&) { return connection->ask(question); },
                     check_);
}

c10::intrusive_ptr<c10d::Store> WatchedStore::clone() {
  return connection_->get()->clone();
}

void WatchedStore::set(const std::string& key, const Bytes& value) {
  ask([key, value](Store& store) { store.set(key, value); });
}

Bytes WatchedStore::compareSet(const std::string& key, const Bytes& current, const Bytes& wanted) {
  return ask(
      [key, current, wanted](Store& store) { return store.compareSet(key, current, wanted); });
}

Bytes WatchedStore::get(const std::string& key) {
  wait({key});
  return ask([key](Store& store) { return store.get(key); });
}

std::int64_t WatchedStore::add(const std::string& key, std::int64_t value) {
  return ask([key, value](Store& store) { return store.add(key, value); });
}

bool WatchedStore::deleteKey(const std::string& key) {
  return ask([key](Store& store) { return store.deleteKey(key); });
}

// Who waits for something else looks here from time to time.
bool WatchedStore::check(const std::vector<std::string>& keys) {
  return ask([keys](Store& store) { return store.check(keys); });
}

std::int64_t WatchedStore::getNumKeys() {
  return ask([](Store& store) { return store.getNumKeys(); });
}

void WatchedStore::wait(const std::vector<std::string>& keys) {
  wait(keys, getTimeout());
}

void WatchedStore::wait(const std::vector<std::string>& keys,
                        const std::chrono::milliseconds& timeout) {
  if (!check_) return connection_->wait(keys, timeout, false);
  run_watched([connection = connection_, keys, timeout](
                  const std::atomic<bool>& is_left) { connection->wait(keys, timeout, is_left); },
              check_);
}

void WatchedStore::setTimeout(const std::chrono::milliseconds& timeout) {
  Store::setTimeout(timeout);
  connection_->get()->setTimeout(timeout);
}

void WatchedStore::append(const std::string& key, const Bytes& value) {
  ask([key, value](Store& store) { store.append(key, value); });
}

std::vector<Bytes> WatchedStore::multiGet(const std::vector<std::string>& keys) {
  wait(keys);
  return ask([keys](Store& store) { return store.multiGet(keys); });
}

void WatchedStore::multiSet(const std::vector<std::string>& keys,
                            const std::vector<Bytes>& values) {
  ask([keys, values](Store& store) { store.multiSet(keys, values); });
}

bool WatchedStore::hasExtendedApi() const {
  return connection_->get()->hasExtendedApi();
}

c10::intrusive_ptr<c10d::Store> watched(c10::intrusive_ptr<c10d::Store> store,
                                        const std::function<void()>& check) {
  if (!check) return store;
  return c10::make_intrusive<WatchedStore>(std::move(store), check);
}

}  // namespace lockstep::inline internal
