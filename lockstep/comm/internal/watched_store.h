#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep::inline internal {

/// A store whose waits can be ended from within: before each question to it and every few
/// milliseconds until that is answered `check` is called, and what that throws ends the wait; also
/// where the store's server does not answer at all. Without a `check` waits end as those of
/// the store underneath do.
/// Once a read of its connection has timed out (limit_reads_from) it is of no use any more, as a
/// late answer would be taken for that to another question: all else fails at once.
/// Threads: as the store underneath; `check` is called by the thread that waits. Clones, which
/// backends give to threads of their own, are of the store underneath.
class WatchedStore final : public c10d::Store {
 public:
  explicit WatchedStore(c10::intrusive_ptr<c10d::Store> store, std::function<void()> check = {});

  /// From now on nothing here holds the store underneath, and all fails, waits that are under way
  /// too.
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

/// `store`, whose waits `check` can end; the store itself where there is no `check`.
c10::intrusive_ptr<c10d::Store> watched(c10::intrusive_ptr<c10d::Store> store,
                                        const std::function<void()>& check);

}  // namespace lockstep::inline internal
