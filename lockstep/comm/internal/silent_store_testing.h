#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace lockstep {

/// A store that does not answer reads, like one whose server is stopped.
class SilentStore : public c10d::HashStore {
 public:
  std::vector<std::uint8_t> get(const std::string&) override { fall_silent(); }
  void wait(const std::vector<std::string>&) override { fall_silent(); }
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {
    fall_silent();
  }
  bool check(const std::vector<std::string>&) override { fall_silent(); }
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>&) override {
    fall_silent();
  }

  void wait_until_asked() { asked_.get_future().wait(); }
  void end() { end_.set_value(); }

 private:
  [[noreturn]] void fall_silent() {
    if (!was_asked_.exchange(true)) asked_.set_value();
    ended_.wait();
    throw std::runtime_error("the store has ended");
  }

  std::atomic<bool> was_asked_ = false;
  std::promise<void> asked_;
  std::promise<void> end_;
  std::shared_future<void> ended_ = end_.get_future().share();
};

}  // namespace lockstep
