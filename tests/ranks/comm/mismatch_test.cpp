#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/env.h"
#include "tests/ranks/fixture.h"
#include "tests/ranks/formula.h"

namespace lockstep::testing {
namespace {

// Ranks that make different calls: every rank must be told, and no tensor may change.
class Mismatch : public Conformance {
 protected:
  using Call = std::function<void(const ProcessGroup&, const at::Tensor&)>;

  // The last rank makes the call `odd`, the others `even`, each on a tensor of its own. Returns the
  // error's message.
  std::string expect_refused_everywhere(const at::Tensor& even_tensor, const Call& even,
                                        const at::Tensor& odd_tensor, const Call& odd) const {
    const ProcessGroup group =
        group_of_all({.timeout = std::chrono::seconds(20), .check_calls = true});
    const bool is_odd = rank_ == world_size_ - 1;
    const at::Tensor tensor = (is_odd ? odd_tensor : even_tensor).clone();
    const std::string message =
        message_of<UsageError>([&] { (is_odd ? odd : even)(group, tensor); });
    EXPECT_TRUE(message != "no error" && !message.starts_with("another")) << message;
    EXPECT_TRUE(at::equal(tensor, is_odd ? odd_tensor : even_tensor)) << "the tensor changed";
    group_.barrier();  // Nobody has left with its part of the group while others still use it.
    return message;
  }

  std::string expect_refused_everywhere(const Call& even, const Call& odd) const {
    const at::Tensor tensor = formula(rank_, 6, at::kFloat);
    return expect_refused_everywhere(tensor, even, tensor, odd);
  }

  int last() const { return world_size_ - 1; }

  static void all_reduce(const ProcessGroup& group, const at::Tensor& tensor) {
    group.all_reduce(tensor);
  }
};

TEST_F(Mismatch, OfSizesIsRefused) {
  NEEDS_RANKS(2);
  for (const auto& [even, odd] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {4, 8}, {8, 4}, {0, 4}, {4, 0}, {1, 2'300'003}, {2'300'003, 2'300'002}}) {
    SCOPED_TRACE(std::to_string(even) + " against " + std::to_string(odd));
    const std::string message =
        expect_refused_everywhere(formula(rank_, even, at::kFloat), &all_reduce,
                                  formula(rank_, odd, at::kFloat), &all_reduce);
    EXPECT_SAYS(message, "all_reduce");
    EXPECT_SAYS(message, "rank " + std::to_string(last()));
  }
}

TEST_F(Mismatch, OfDtypesIsRefused) {
  NEEDS_RANKS(2);
  for (const auto dtype : {at::kInt, at::kDouble, at::kHalf}) {
    expect_refused_everywhere(formula(rank_, 6, at::kFloat), &all_reduce, formula(rank_, 6, dtype),
                              &all_reduce);
  }
}

TEST_F(Mismatch, OfReductionsIsRefused) {
  NEEDS_RANKS(2);
  expect_refused_everywhere(&all_reduce, [](const auto& group, const auto& tensor) {
    group.all_reduce(tensor, {.op = ReduceOp::kMax});
  });
}

TEST_F(Mismatch, OfRootsIsRefused) {
  NEEDS_RANKS(2);
  expect_refused_everywhere(
      [](const auto& group, const auto& tensor) { group.broadcast(tensor, 0); },
      [&](const auto& group, const auto& tensor) { group.broadcast(tensor, last()); });
  expect_refused_everywhere(
      [](const auto& group, const auto& tensor) { group.reduce(tensor, 0); },
      [&](const auto& group, const auto& tensor) { group.reduce(tensor, last()); });
  const auto gather = [&](const ProcessGroup& group, const at::Tensor& tensor, int target) {
    group.gather(rank_ == target ? outputs(6, at::kFloat) : Tensors{}, tensor, target);
  };
  expect_refused_everywhere(
      [&](const auto& group, const auto& tensor) { gather(group, tensor, 0); },
      [&](const auto& group, const auto& tensor) { gather(group, tensor, last()); });
  const auto scatter = [&](const ProcessGroup& group, const at::Tensor& tensor, int source) {
    group.scatter(tensor, rank_ == source ? outputs(6, at::kFloat) : Tensors{}, source);
  };
  expect_refused_everywhere(
      [&](const auto& group, const auto& tensor) { scatter(group, tensor, 0); },
      [&](const auto& group, const auto& tensor) { scatter(group, tensor, last()); });
}

TEST_F(Mismatch, OfOperationsIsRefused) {
  NEEDS_RANKS(2);
  const Call broadcast = [](const auto& group, const auto& tensor) { group.broadcast(tensor, 0); };
  const Call barrier = [](const auto& group, const auto&) { group.barrier(); };
  const Call all_gather = [&](const auto& group, const auto& tensor) {
    group.all_gather(outputs(6, at::kFloat), tensor);
  };
  const Call reduce_scatter = [&](const auto& group, const auto& tensor) {
    group.reduce_scatter_tensor(tensor, formula(rank_, 6 * world_size_, at::kFloat));
  };
  const Call all_to_all = [&](const auto& group, const auto&) {
    group.all_to_all(outputs(6, at::kFloat), outputs(6, at::kFloat));
  };
  expect_refused_everywhere(&all_reduce, broadcast);
  expect_refused_everywhere(broadcast, &all_reduce);
  expect_refused_everywhere(&all_reduce, barrier);
  expect_refused_everywhere(barrier, all_gather);
  expect_refused_everywhere(all_gather, reduce_scatter);
  expect_refused_everywhere(reduce_scatter, all_to_all);
  expect_refused_everywhere(all_to_all, &all_reduce);
}

TEST_F(Mismatch, OfGatheredAndScatteredSizesIsRefused) {
  NEEDS_RANKS(2);
  const at::Tensor short_tensor = formula(rank_, 6, at::kFloat);
  const at::Tensor long_tensor = formula(rank_, 1009, at::kFloat);
  const auto for_both = [&](const Call& call) {
    expect_refused_everywhere(short_tensor, call, long_tensor, call);
  };
  for_both([&](const auto& group, const auto& tensor) {
    group.all_gather(outputs(tensor.numel(), at::kFloat), tensor);
  });
  for_both([&](const auto& group, const auto& tensor) {
    group.all_gather_into_tensor(zeros(tensor.numel() * world_size_, at::kFloat), tensor);
  });
  for_both([&](const auto& group, const auto& tensor) {
    group.gather(rank_ == 0 ? outputs(tensor.numel(), at::kFloat) : Tensors{}, tensor, 0);
  });
  for_both([&](const auto& group, const auto& tensor) {
    group.scatter(tensor, rank_ == 0 ? outputs(tensor.numel(), at::kFloat) : Tensors{}, 0);
  });
  for_both([&](const auto& group, const auto& tensor) {
    group.reduce_scatter(tensor, outputs(tensor.numel(), at::kFloat));
  });
  for_both([&](const auto& group, const auto& tensor) { group.broadcast(tensor, 0); });
}

TEST_F(Mismatch, OfWhatTwoRanksExchangeIsRefused) {
  NEEDS_RANKS(2);
  const auto all_to_all = [&](std::int64_t expected) {
    return [this, expected](const ProcessGroup& group, const at::Tensor&) {
      group.all_to_all(outputs(expected, at::kFloat), outputs(6, at::kFloat));
    };
  };
  const std::string message = expect_refused_everywhere(all_to_all(6), all_to_all(7));
  EXPECT_SAYS(message, "which expects 7");
  const auto single = [&](std::int64_t expected) {
    return [this, expected](const ProcessGroup& group, const at::Tensor&) {
      group.all_to_all_single(zeros(expected * world_size_, at::kFloat),
                              zeros(6 * world_size_, at::kFloat));
    };
  };
  expect_refused_everywhere(single(6), single(0));
}

// Two calls of one shape, the other way round: only their names tell.
TEST_F(Mismatch, OfNamesIsRefused) {
  NEEDS_RANKS(2);
  const auto named = [](const char* name) {
    return [name](const ProcessGroup& group, const at::Tensor& tensor) {
      group.all_reduce(tensor, {.name = name});
    };
  };
  expect_refused_everywhere(named("loss"), named("accuracy"));
  expect_refused_everywhere(named("loss"), named(""));
  EXPECT_SAYS(message_of<UsageError>(
                  [&] { group_.barrier({.name = "a name that is too long to be compared"}); }),
              "at most 23 are compared");
}

TEST_F(Mismatch, OfAsynchronousCallsIsRefused) {
  NEEDS_RANKS(2);
  const auto all_reduce_async = [](const ProcessGroup& group, const at::Tensor& tensor) {
    group.all_reduce(tensor, {.async_op = true}).wait();
  };
  expect_refused_everywhere(formula(rank_, 6, at::kFloat), all_reduce_async,
                            formula(rank_, 9, at::kFloat), all_reduce_async);
}

// Each machine makes one call on all its ranks. Messages are of one size: a longer one than
// expected ends the process in Gloo.
TEST_F(Mismatch, BetweenMachinesIsFoundWithoutComparedCalls) {
  NEEDS_RANKS(3);
  if (group_.backend_name() != "hierarchical") GTEST_SKIP() << "one machine";
  const auto all_gather = [&](at::ScalarType dtype) {
    return [this, dtype](const ProcessGroup& group) {
      group.all_gather_into_tensor(zeros(6 * world_size_, dtype), zeros(6, dtype));
    };
  };
  const auto reduce_scatter = [&](ReduceOp op) {
    return [this, op](const ProcessGroup& group) {
      group.reduce_scatter_tensor(zeros(6, at::kFloat), zeros(6 * world_size_, at::kFloat),
                                  {.op = op});
    };
  };
  using GroupCall = std::function<void(const ProcessGroup&)>;
  const at::Tensor own_machine =
      at::full({1}, std::stoi(env::text(env::kMemoryDomain).value_or("0")));
  const at::Tensor last_machine = own_machine.clone();
  group_.broadcast(last_machine, last());
  const bool is_on_last_machine = at::equal(own_machine, last_machine);
  for (const auto& [even, odd] : std::vector<std::pair<GroupCall, GroupCall>>{
           {all_gather(at::kFloat), all_gather(at::kInt)},
           {reduce_scatter(ReduceOp::kSum), reduce_scatter(ReduceOp::kMax)}}) {
    const ProcessGroup group =
        group_of_all({.timeout = std::chrono::seconds(20), .check_calls = false});
    const std::string message =
        message_of<Error>([&] { (is_on_last_machine ? odd : even)(group); });
    EXPECT_SAYS(message, "make the same calls in the same order");
    group_.barrier();
  }
}

// What the exchange before the call gives on top, on backends that do not check calls themselves.
class ExchangedCheck : public Mismatch {
 protected:
  bool is_ours() const { return group_.backend_name() != "shm"; }
};

TEST_F(ExchangedCheck, NamesBothCallsAndLeavesTheGroupUsable) {
  NEEDS_RANKS(2);
  if (!is_ours()) GTEST_SKIP() << "the backend compares calls itself";
  const ProcessGroup group = group_of_all({.check_calls = true});
  const bool is_odd = rank_ == last();
  const at::Tensor tensor = formula(rank_, is_odd ? 5 : 4, at::kFloat);
  group.barrier();
  const std::string message = message_of<UsageError>([&] {
    if (is_odd) {
      group.broadcast(tensor, 0);
    } else {
      group.all_reduce(tensor);
    }
  });
  EXPECT_SAYS(message, std::string(is_odd ? "broadcast" : "all_reduce") + " number 1 of group '");
  EXPECT_SAYS(message, "rank " + std::to_string(last()) +
                           " called broadcast of 5 float32, root 0, but rank 0 all_reduce of 4 "
                           "float32, op SUM");
  at::Tensor sum = formula(rank_, 7, at::kFloat);
  group.all_reduce(sum);
  EXPECT_TRUE(matches(sum, reduced_formula(world_size_, 7, at::kFloat, ReduceOp::kSum)));
}

TEST_F(ExchangedCheck, CanBeSwitchedOff) {
  NEEDS_RANKS(2);
  if (!is_ours() || group_.backend_name() == "hierarchical") {
    GTEST_SKIP() << "the ranks of one machine compare their calls anyway";
  }
  // Ranks do not agree on the operation, which harms nothing but the result: the kind of call is
  // one.
  const auto disagree = [&](const ProcessGroup& group) {
    at::Tensor tensor = formula(rank_, 6, at::kFloat);
    group.all_reduce(tensor, {.op = rank_ == 0 ? ReduceOp::kMin : ReduceOp::kMax});
    return tensor;
  };
  const at::Tensor least = reduced_formula(world_size_, 6, at::kFloat, ReduceOp::kMin);
  const at::Tensor most = reduced_formula(world_size_, 6, at::kFloat, ReduceOp::kMax);
  const at::Tensor tensor = disagree(group_of_all({.check_calls = false}));
  EXPECT_TRUE(at::le(least, tensor).all().item<bool>() && at::le(tensor, most).all().item<bool>())
      << tensor;
  const ProcessGroup checked = group_of_all({.check_calls = true});
  EXPECT_SAYS(message_of<UsageError>([&] { disagree(checked); }), "op MIN");
}

}  // namespace
}  // namespace lockstep::testing
