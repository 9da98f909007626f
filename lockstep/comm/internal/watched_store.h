#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep::inline internal {

/// A store whose waits can be interrupted: it calls `check` before each request and every few
/// milliseconds until the answer, and an exception from `check` ends the wait, even if the store's
/// server does not answer. Without `check` waits end as those of the wrapped store.
/// After a read of its connection timed out (limit_reads_from), all further requests fail at once,
/// because a late answer would be taken for that of another request.
/// Threads: as the wrapped store; the waiting thread calls `check`. Clones, which backends give to
/// their own threads, are of the wrapped store.
class WatchedStore final : public c10d::Store {
 public:
  explicit WatchedStore(c10::intrusive_ptr<c10d::Store> store, std::function<void()> check = {});

  /// Releases the wrapped store: from now on all requests fail, running waits included.
  void let_go();

  using Store::compareSet;
  using Store::set;
  c10::intrusive_ptr<Store> clone() override;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key,
                                       const std::vector<std::uint8_t>& current,
                                       const std::vector<std::uint8_t>& wanted) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<std::uint8_t>>& values) override;
  bool hasExtendedApi() const override;

 private:
  struct Connection;
  template <class Question>
  auto ask(Question question);

  const std::shared_ptr<Connection> connection_;
  const std::function<void()> check_;
};

/// Wraps `store` so that `check` can end its waits; returns it unchanged without a `check`.
c10::intrusive_ptr<c10d::Store> watched(c10::intrusive_ptr<c10d::Store> store,
                                        const std::function<void()>& check);

}  // namespace lockstep::inline internal
