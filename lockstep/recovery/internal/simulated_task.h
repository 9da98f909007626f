#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

namespace lockstep::inline internal {

/// A part of a simulated program, for tests: a coroutine that runs when it is awaited and returns a
/// value or throws.
/// Lifetime: the destructor ends it at any point, as a killed process ends.
template <class Value>
class SimulatedTask {
 public:
  struct promise_type {
    std::coroutine_handle<> caller{};
    std::exception_ptr error{};
    std::optional<Value> value{};

    SimulatedTask get_return_object() {
      return SimulatedTask(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    auto final_suspend() noexcept {
      struct ToCaller {
        bool await_ready() noexcept { return false; }
        std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> ended) noexcept {
          const auto caller = ended.promise().caller;
          return caller ? caller : std::noop_coroutine();
        }
        void await_resume() noexcept {}
      };
      return ToCaller{};
    }
    void unhandled_exception() { error = std::current_exception(); }
    void return_value(Value result) { value = std::move(result); }
  };

  SimulatedTask() = default;
  SimulatedTask(SimulatedTask&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  SimulatedTask& operator=(SimulatedTask&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~SimulatedTask() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) {
    handle_.promise().caller = caller;
    return handle_;
  }
  Value await_resume() { return result(); }

  /// Of one that nothing awaits.
  std::coroutine_handle<> handle() const { return handle_; }
  bool is_done() const { return handle_.done(); }
  Value result() {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return std::move(*handle_.promise().value);
  }

 private:
  explicit SimulatedTask(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_{};
};

}  // namespace lockstep::inline internal
