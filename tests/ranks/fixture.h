#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"

namespace lockstep::testing {

using Tensors = std::vector<at::Tensor>;

/// Where a tensor lies: in the allocator's memory, in that of the backend (c10d's allocateTensor),
/// or in either, changing from rank to rank.
enum class Memory { kOrdinary, kBackend, kMixed };

/// What the conformance tests have at hand: the group under test, and every dtype, size and
/// reduction that a backend must take.
class Conformance : public ::testing::Test {
 protected:
  static constexpr at::ScalarType kDtypes[] = {at::kFloat,    at::kDouble, at::kHalf,
                                               at::kBFloat16, at::kInt,    at::kLong,
                                               at::kChar,     at::kByte,   at::kBool};
  static constexpr std::int64_t kSizes[] = {0, 1, 2, 7, 64, 1009, 65'537};
  /// In elements of float: above 1 MiB and above 8 MiB, neither a multiple of any chunk.
  static constexpr std::int64_t kLargeSizes[] = {300'007, 2'300'003};

  /// kOrdinary alone where the backend has no memory of its own to give.
  std::vector<Memory> memories() const;
  /// A copy of `tensor` that lies where `memory` says.
  at::Tensor place(const at::Tensor& tensor, Memory memory) const;

  /// Runs body(dtype, numel) for every combination.
  template <class Body>
  void for_all_tensors(Body&& body) const {
    for (const auto dtype : kDtypes) {
      for (const auto numel : kSizes) {
        SCOPED_TRACE(concat_names(dtype, numel));
        body(dtype, numel);
      }
    }
  }

  /// The reductions that are defined for a dtype, on this backend.
  std::vector<ReduceOp> reductions(at::ScalarType dtype) const;

  /// One zeroed tensor a rank.
  Tensors outputs(std::int64_t numel, at::ScalarType dtype) const;
  at::Tensor zeros(std::int64_t numel, at::ScalarType dtype) const;

  /// A new group of all ranks, in order: for tests that leave it unusable.
  ProcessGroup group_of_all(const NewGroupOptions& options = {}) const;

  /// Whether all ranks of the group hold the same bits. Every rank must call it.
  ::testing::AssertionResult same_bits_everywhere(const Tensors& tensors) const;

  ProcessGroup group_ = default_process_group();
  int rank_ = group_.rank();
  int world_size_ = group_.world_size();

 private:
  static std::string concat_names(at::ScalarType dtype, std::int64_t numel);
};

/// Exactly equal, but for a rounding error of averages.
::testing::AssertionResult matches(const at::Tensor& actual, const at::Tensor& expected);

/// The message of the error of type `Expected` that `action` throws.
template <class Expected, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

/// The error of type `Expected`, an OperationError, that `action` throws.
template <class Expected, class Action>
Expected error_of(Action&& action) {
  std::string instead = "no error";
  try {
    action();
  } catch (const Expected& error) {
    return error;
  } catch (const std::exception& error) {
    instead = std::string("another error: ") + error.what();
  }
  ADD_FAILURE() << instead;
  return Expected(instead);
}

/// Whether a message has these words.
inline ::testing::AssertionResult says(const char*, const char*, const std::string& message,
                                       const std::string& words) {
  if (message.find(words) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << words << "' is not in: " << message;
}

}  // namespace lockstep::testing

/// Skips the rest of a test where there are fewer ranks. What runs with no number of ranks at all
/// is an error of the job (check_ranks_ran.cmake).
#define NEEDS_RANKS(count)                                      \
  if (lockstep::default_process_group().world_size() < (count)) \
  GTEST_SKIP() << "needs " << (count) << " ranks"

#define EXPECT_SAYS(message, words) EXPECT_PRED_FORMAT2(lockstep::testing::says, message, words)

namespace lockstep::testing {

/// That `action`, on all ranks of the default group, throws an error of type `Own` with these words
/// on rank `culprit`, and on the others PeerFailed, which names that rank.
template <class Own, class Action>
void expect_failure_of(int culprit, const std::string& words, Action&& action) {
  if (default_process_group().rank() == culprit) {
    EXPECT_SAYS(message_of<Own>(action), words);
  } else {
    EXPECT_EQ(error_of<PeerFailed>(action).rank(), culprit);
  }
}

}  // namespace lockstep::testing
