#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/internal/concat.h"
#include "tests/ranks/fixture.h"
#include "tests/ranks/formula.h"

namespace lockstep::testing {
namespace {

using c10d::Backend;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// c10d's own methods, which programs reach past ProcessGroup and its checks: what Gloo refuses is
// refused before anything is sent, and what is accepted gives what Gloo gives.
class C10dBackend : public Conformance {
 protected:
  void SetUp() override {
    if (world_size_ == 1) GTEST_SKIP() << "a group of one rank has no backend";
    subject_group_ = group_of_all({.timeout = std::chrono::seconds(20)});
    oracle_group_ = group_of_all({.backend = "gloo", .timeout = std::chrono::seconds(20)});
  }

  /// The tensors that the call has written, or nothing where it is refused.
  using Call = std::function<Tensors(Backend&)>;
  using Outcome = std::optional<Tensors>;

  static Outcome outcome_of(const ProcessGroup& group, const Call& call, std::string& error) {
    try {
      return call(*group.c10d_backend());
    } catch (const std::exception& refused) {
      error = refused.what();
      return std::nullopt;
    }
  }

  /// `may_refuse`: the subject need not take it, but it must say so.
  void expect_as_gloo(const std::string& name, const Call& call, bool may_refuse = false) {
    SCOPED_TRACE(name);
    std::string error;
    std::string oracle_error;
    const Outcome oracle = outcome_of(oracle_group_, call, oracle_error);
    const Outcome subject = outcome_of(subject_group_, call, error);
    if (!subject) {
      EXPECT_TRUE(!oracle || may_refuse) << "refused, unlike by gloo: " << error;
      EXPECT_EQ(error.find("ended before"), std::string::npos) << error;
      return;
    }
    ASSERT_TRUE(oracle) << "accepted, unlike by gloo: " << oracle_error;
    ASSERT_EQ(subject->size(), oracle->size());
    for (std::size_t i = 0; i < oracle->size(); ++i) {
      EXPECT_TRUE(at::equal((*subject)[i], (*oracle)[i]))
          << "tensor " << i << ": got " << (*subject)[i] << ", gloo gives " << (*oracle)[i];
    }
  }

  void expect_refused(const std::string& name, const Call& call) {
    std::string error;
    EXPECT_FALSE(outcome_of(subject_group_, call, error)) << name << " was accepted";
  }

  /// That the calls before have left the group in order.
  void TearDown() override {
    if (world_size_ == 1) return;
    at::Tensor tensor = at::ones({3});
    subject_group_.all_reduce(tensor);
    EXPECT_TRUE(at::equal(tensor, at::full({3}, world_size_, at::kFloat)));
  }

  at::Tensor input(std::int64_t numel = 6, int number = 0) const {
    return formula(rank_, numel, at::kFloat, number);
  }

  ProcessGroup subject_group_;
  ProcessGroup oracle_group_;
};

Tensors waited(const WorkPtr& work, Tensors written) {
  work->wait();
  return written;
}

TEST_F(C10dBackend, RefusesRootsThatAreNone) {
  // 256 is 0 in eight bits.
  for (const std::int64_t root : {-1, world_size_, 256, 300}) {
    const auto name = [&](const char* operation) { return concat(operation, " with root ", root); };
    expect_as_gloo(name("broadcast"), [&](Backend& backend) {
      Tensors tensors{input()};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return waited(backend.broadcast(tensors, options), tensors);
    });
    expect_as_gloo(name("reduce"), [&](Backend& backend) {
      Tensors tensors{input()};
      c10d::ReduceOptions options;
      options.rootRank = root;
      return waited(backend.reduce(tensors, options), tensors);
    });
    expect_as_gloo(name("gather"), [&](Backend& backend) {
      std::vector<Tensors> outputs;
      Tensors inputs{input()};
      c10d::GatherOptions options;
      options.rootRank = root;
      return waited(backend.gather(outputs, inputs, options), {});
    });
    expect_as_gloo(name("scatter"), [&](Backend& backend) {
      Tensors outputs{input()};
      std::vector<Tensors> inputs;
      c10d::ScatterOptions options;
      options.rootRank = root;
      return waited(backend.scatter(outputs, inputs, options), outputs);
    });
  }
  for (const std::int64_t root_tensor : {-1, 1}) {
    expect_as_gloo("broadcast of no tensor", [&](Backend& backend) {
      Tensors tensors{input()};
      c10d::BroadcastOptions options;
      options.rootTensor = root_tensor;
      return waited(backend.broadcast(tensors, options), tensors);
    });
    expect_as_gloo("reduce of no tensor", [&](Backend& backend) {
      Tensors tensors{input()};
      c10d::ReduceOptions options;
      options.rootTensor = root_tensor;
      return waited(backend.reduce(tensors, options), tensors);
    });
  }
}

// A list of as many tensors as `count` says.
Tensors list_of(std::int64_t count, std::int64_t numel, at::ScalarType dtype = at::kFloat) {
  Tensors tensors;
  for (std::int64_t i = 0; i < count; ++i) tensors.push_back(at::zeros({numel}, dtype));
  return tensors;
}

TEST_F(C10dBackend, TakesListsOfTheRightNumberOfTensorsAndNoOthers) {
  for (const std::int64_t count : {0, 1, 2}) {
    expect_as_gloo(
        concat("allreduce of ", count),
        [&](Backend& backend) {
          Tensors tensors(static_cast<std::size_t>(count), input());
          return waited(backend.allreduce(tensors), tensors);
        },
        count == 2);
    expect_as_gloo(
        concat("broadcast of ", count),
        [&](Backend& backend) {
          Tensors tensors(static_cast<std::size_t>(count), input());
          return waited(backend.broadcast(tensors), tensors);
        },
        count == 2);
    expect_as_gloo(
        concat("reduce of ", count),
        [&](Backend& backend) {
          Tensors tensors(static_cast<std::size_t>(count), input());
          auto work = backend.reduce(tensors);
          work->wait();
          return rank_ == 0 ? tensors : Tensors{};
        },
        count == 2);
    expect_refused(concat("send of ", count == 1 ? 3 : count), [&](Backend& backend) {
      Tensors tensors(static_cast<std::size_t>(count == 1 ? 3 : count), input());
      return waited(backend.send(tensors, (rank_ + 1) % world_size_, 0), {});
    });
  }
  for (const std::int64_t count : {0, world_size_ - 1, world_size_, world_size_ + 1}) {
    expect_as_gloo(concat("allgather to ", count), [&](Backend& backend) {
      std::vector<Tensors> outputs{list_of(count, 6)};
      Tensors inputs{input()};
      return waited(backend.allgather(outputs, inputs), outputs[0]);
    });
    expect_as_gloo(concat("gather to ", count), [&](Backend& backend) {
      // On all ranks, so that all refuse it; Gloo wants none where there is no root.
      std::vector<Tensors> outputs;
      if (rank_ == 0 || count != world_size_) outputs.push_back(list_of(count, 6));
      Tensors inputs{input()};
      auto work = backend.gather(outputs, inputs);
      work->wait();
      return rank_ == 0 ? outputs[0] : Tensors{};
    });
    expect_as_gloo(concat("scatter of ", count), [&](Backend& backend) {
      Tensors outputs{at::zeros({6})};
      std::vector<Tensors> inputs;
      if (rank_ == 0 || count != world_size_) {
        inputs.emplace_back();
        for (int i = 0; i < count; ++i) inputs[0].push_back(input(6, i));
      }
      return waited(backend.scatter(outputs, inputs), outputs);
    });
    expect_as_gloo(concat("reduce_scatter of ", count), [&](Backend& backend) {
      Tensors outputs{at::zeros({6})};
      std::vector<Tensors> inputs(1);
      for (int i = 0; i < count; ++i) inputs[0].push_back(input(6, i));
      return waited(backend.reduce_scatter(outputs, inputs), outputs);
    });
    expect_as_gloo(concat("alltoall of ", count), [&](Backend& backend) {
      Tensors outputs = list_of(count, 6);
      Tensors inputs;
      for (int i = 0; i < count; ++i) inputs.push_back(input(6, i));
      return waited(backend.alltoall(outputs, inputs), outputs);
    });
  }
  expect_as_gloo("allgather to no list", [&](Backend& backend) {
    std::vector<Tensors> outputs;
    Tensors inputs{input()};
    return waited(backend.allgather(outputs, inputs), {});
  });
  expect_as_gloo("reduce_scatter of no list", [&](Backend& backend) {
    Tensors outputs{input()};
    std::vector<Tensors> inputs;
    return waited(backend.reduce_scatter(outputs, inputs), outputs);
  });
}

TEST_F(C10dBackend, RefusesSizesAndDtypesThatDoNotFit) {
  for (const auto& [numel, dtype] : {std::pair{5, at::kFloat}, std::pair{6, at::kDouble}}) {
    expect_as_gloo("allgather", [&](Backend& backend) {
      std::vector<Tensors> outputs{list_of(world_size_, numel, dtype)};
      Tensors inputs{input()};
      return waited(backend.allgather(outputs, inputs), outputs[0]);
    });
    expect_as_gloo("reduce_scatter", [&](Backend& backend) {
      Tensors outputs{input()};
      std::vector<Tensors> inputs{list_of(world_size_, numel, dtype)};
      return waited(backend.reduce_scatter(outputs, inputs), outputs);
    });
    expect_refused("alltoall of another dtype", [&](Backend& backend) {
      Tensors outputs = list_of(world_size_, 6, at::kDouble);
      Tensors inputs = list_of(world_size_, 6);
      return waited(backend.alltoall(outputs, inputs), outputs);
    });
  }
  for (const std::int64_t surplus : {-1, 1}) {
    expect_refused("_allgather_base", [&](Backend& backend) {
      at::Tensor output = at::zeros({6 * world_size_ + surplus});
      at::Tensor source = input();
      return waited(backend._allgather_base(output, source), {output});
    });
    expect_refused("_reduce_scatter_base", [&](Backend& backend) {
      at::Tensor output = at::zeros({6});
      at::Tensor source = input(6 * world_size_ + surplus);
      return waited(backend._reduce_scatter_base(output, source), {output});
    });
  }
  const auto exchange = [&](std::int64_t rows, const std::vector<std::int64_t>& splits) {
    return [this, rows, splits](Backend& backend) {
      at::Tensor output = at::zeros({rows, 2});
      at::Tensor source = input(rows * 2).view({rows, 2});
      auto received = splits;  // Gloo takes what is in them.
      auto sent = splits;
      return waited(backend.alltoall_base(output, source, received, sent), {output});
    };
  };
  const std::vector<std::int64_t> ones(static_cast<std::size_t>(world_size_), 1);
  std::vector<std::int64_t> too_few(ones.begin() + 1, ones.end());
  std::vector<std::int64_t> too_many(ones);
  too_many.push_back(0);
  std::vector<std::int64_t> negative(ones.size());
  negative[0] = world_size_ + 1;
  negative[1] = -1;
  expect_as_gloo("alltoall_base", exchange(world_size_, ones));
  expect_as_gloo("alltoall_base in equal parts", exchange(2 * world_size_, {}));
  expect_as_gloo("alltoall_base in parts that are none", exchange(2 * world_size_ + 1, {}), true);
  expect_as_gloo("alltoall_base, another sum", exchange(world_size_ + 1, ones));
  expect_as_gloo("alltoall_base, too few splits", exchange(world_size_ - 1, too_few));
  expect_as_gloo("alltoall_base, too many splits", exchange(world_size_, too_many));
  expect_refused("alltoall_base, a negative split", exchange(world_size_, negative));
}

// Over gloo minima of floats are exchanged as integers, bools as bytes.
TEST_F(C10dBackend, RefusesReductionsOfMixedDtypes) {
  constexpr std::pair<at::ScalarType, at::ScalarType> kPairs[] = {
      {at::kFloat, at::kHalf}, {at::kFloat, at::kDouble}, {at::kFloat, at::kInt},
      {at::kHalf, at::kFloat}, {at::kBool, at::kByte},    {at::kByte, at::kBool}};
  for (const auto op : {c10d::ReduceOp::MIN, c10d::ReduceOp::MAX, c10d::ReduceOp::SUM}) {
    for (const auto& [dtype, other] : kPairs) {
      SCOPED_TRACE(concat(c10::toString(dtype), " and ", c10::toString(other)));
      const auto reduce_scatter_options = [&] {
        c10d::ReduceScatterOptions options;
        options.reduceOp = op;
        return options;
      };
      expect_refused("allreduce_coalesced", [&](Backend& backend) {
        Tensors tensors{at::ones({6}, dtype), at::ones({6}, other)};
        c10d::AllreduceCoalescedOptions options;
        options.reduceOp = op;
        return waited(backend.allreduce_coalesced(tensors, options), tensors);
      });
      expect_refused("reduce_scatter", [&](Backend& backend) {
        Tensors outputs{at::ones({6}, dtype)};
        std::vector<Tensors> inputs{list_of(world_size_, 6, other)};
        return waited(backend.reduce_scatter(outputs, inputs, reduce_scatter_options()), outputs);
      });
      expect_refused("_reduce_scatter_base", [&](Backend& backend) {
        at::Tensor output = at::ones({6}, dtype);
        at::Tensor source = at::ones({6 * world_size_}, other);
        return waited(backend._reduce_scatter_base(output, source, reduce_scatter_options()),
                      {output});
      });
    }
  }
}

TEST_F(C10dBackend, TakesOnlyTensorsThatItReadsRight) {
  const auto transposed = [&] { return input(6).view({2, 3}).t(); };
  const auto strided = [&] { return input(12).slice(0, 0, 12, 2); };
  for (const bool is_strided : {false, true}) {
    const auto make = [&] { return is_strided ? strided() : transposed(); };
    expect_as_gloo(
        "allreduce",
        [&](Backend& backend) {
          Tensors tensors{make()};
          return waited(backend.allreduce(tensors), tensors);
        },
        true);
    expect_as_gloo(
        "allreduce_coalesced",
        [&](Backend& backend) {
          Tensors tensors{make(), input(4)};
          return waited(backend.allreduce_coalesced(tensors), tensors);
        },
        true);
    expect_refused("_allgather_base", [&](Backend& backend) {
      at::Tensor output = at::zeros({3 * world_size_, 2}).t();
      at::Tensor source = make();
      return waited(backend._allgather_base(output, source), {output});
    });
  }
  expect_refused("allreduce of an undefined tensor", [&](Backend& backend) {
    Tensors tensors{at::Tensor()};
    return waited(backend.allreduce(tensors), {});
  });
  expect_as_gloo(
      "allreduce of complex numbers",
      [&](Backend& backend) {
        Tensors tensors{at::ones({2}, at::kComplexFloat)};
        return waited(backend.allreduce(tensors), tensors);
      },
      true);
}

TEST_F(C10dBackend, RefusesReductionsThatAreNotDefined) {
  const auto reduce_all = [&](at::ScalarType dtype, c10d::ReduceOp op) {
    return [this, dtype, op](Backend& backend) {
      Tensors tensors{formula(rank_, 6, dtype)};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      return waited(backend.allreduce(tensors, options), tensors);
    };
  };
  const auto reduce_to_root = [&](at::ScalarType dtype, c10d::ReduceOp op) {
    return [this, dtype, op](Backend& backend) {
      Tensors tensors{formula(rank_, 6, dtype)};
      c10d::ReduceOptions options;
      options.reduceOp = op;
      return waited(backend.reduce(tensors, options), {});
    };
  };
  for (const auto op : {c10d::ReduceOp::BAND, c10d::ReduceOp::BXOR, c10d::ReduceOp::BOR}) {
    expect_as_gloo("allreduce of floats by bits", reduce_all(at::kFloat, op));
    expect_as_gloo("reduce of floats by bits", reduce_to_root(at::kFloat, op));
  }
  expect_refused("the mean of integers", reduce_all(at::kInt, c10d::ReduceOp::AVG));
  expect_refused("the mean of integers at the root", reduce_to_root(at::kInt, c10d::ReduceOp::AVG));
}

TEST_F(C10dBackend, CoalescedReductionsAreThoseOfAllTensorsAtOnce) {
  const auto coalesced = [&](const std::function<Tensors()>& make) {
    return [make](Backend& backend) {
      Tensors tensors = make();
      auto work = backend.allreduce_coalesced(tensors);
      work->wait();
      const Tensors results = work->result();
      EXPECT_EQ(results.size(), tensors.size()) << backend.getBackendName();
      tensors.insert(tensors.end(), results.begin(), results.end());
      return tensors;
    };
  };
  expect_as_gloo("none", coalesced([] { return Tensors{}; }));
  expect_as_gloo("one", coalesced([&] { return Tensors{input(5)}; }));
  expect_as_gloo("several", coalesced([&] {
                   return Tensors{input(5), input(300'007, 1), input(1, 2), at::zeros({0}),
                                  input(6, 3).view({2, 3})};
                 }));
  expect_as_gloo("one of them twice", coalesced([&] {
                   const at::Tensor twice = input(5);
                   return Tensors{twice, input(7, 1), twice};
                 }));
  expect_as_gloo("overlapping ones", coalesced([&] {
                   const at::Tensor whole = input(12);
                   return Tensors{whole.narrow(0, 0, 8), whole.narrow(0, 0, 8)};
                 }));
  expect_as_gloo("of two dtypes", coalesced([&] {
                   return Tensors{input(5), at::ones({4}, at::kDouble)};
                 }));
}

TEST_F(C10dBackend, ResultsAreThereWhenAWorkSaysThatItIsComplete) {
  Tensors tensors{input(5), input(7, 1)};
  const auto work = subject_group_.c10d_backend()->allreduce_coalesced(tensors);
  while (!work->isCompleted()) {
  }
  EXPECT_TRUE(work->isSuccess());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(matches(tensors[i], reduced_formula(world_size_, tensors[i].numel(), at::kFloat,
                                                    ReduceOp::kSum, static_cast<int>(i))));
  }
}

TEST_F(C10dBackend, RefusesPeersThatAreNone) {
  for (const int peer : {-1, world_size_, rank_}) {
    expect_refused(concat("send to ", peer), [&](Backend& backend) {
      Tensors tensors{input()};
      return waited(backend.send(tensors, peer, 0), {});
    });
    expect_refused(concat("recv from ", peer), [&](Backend& backend) {
      Tensors tensors{input()};
      return waited(backend.recv(tensors, peer, 0), tensors);
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
