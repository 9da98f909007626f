#include "lockstep/rpc/rpc.h"

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <numeric>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "tests/ranks/fixture.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::error_of;
using lockstep::testing::message_of;

std::string name_of(int rank) {
  return concat("worker", rank);
}

struct Counter {
  explicit Counter(int first) : value(first) { ++alive; }
  ~Counter() { --alive; }
  int value;
  static inline std::atomic<int> alive{0};
};

std::atomic<int> served{0};

// One that outlives sessions.
c10::intrusive_ptr<c10::ivalue::Future>& late_answer() {
  static auto answer = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
  return answer;
}

// A promise that others fulfil: for functions that answer later.
struct Gate {
  c10::intrusive_ptr<c10::ivalue::Future> opened =
      c10::make_intrusive<c10::ivalue::Future>(c10::StringType::get());
};

class Rpc : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    using Values = std::vector<c10::IValue>;
    rpc::register_function("echo", [](Values values) -> c10::IValue {
      return c10::ivalue::Tuple::create(std::move(values));
    });
    rpc::register_function("add", [](const at::Tensor& a, double b) { return a + b; });
    rpc::register_function("name", [] { return rpc::this_worker().name; });
    rpc::register_function("fail", [](const std::string& text) { throw std::out_of_range(text); });
    rpc::register_function("fail at length", [](int letters) {
      throw std::runtime_error(std::string(static_cast<std::size_t>(letters), 'x'));
    });
    rpc::register_function("misuse", [] { throw UsageError("never do that"); });
    rpc::register_function("narrow", [](std::int8_t value) { return value; });
    rpc::register_function("join", [](const std::vector<std::string>& words, bool upper) {
      std::string all = std::accumulate(words.begin(), words.end(), std::string());
      if (upper)
        for (char& letter : all) letter = static_cast<char>(std::toupper(letter));
      return all;
    });
    rpc::register_function("relay", [](const std::string& to, int hops) -> std::int64_t {
      return hops == 0
                 ? 0
                 : 1 + rpc::call<std::int64_t>(to, "relay", rpc::this_worker().name, hops - 1);
    });
    rpc::register_function("circle", [](const std::string& to, int hops) {
      if (hops > 0) rpc::call<void>({to, 300ms}, "circle", rpc::this_worker().name, hops - 1);
    });
    rpc::register_function("counter", [](int first) { return std::make_shared<Counter>(first); });
    rpc::register_function("counter.add", [](const std::shared_ptr<Counter>& counter, int n) {
      return counter->value += n;
    });
    rpc::register_function(
        "use", [](const rpc::RRef& counter, int n) { return counter.call<int>("counter.add", n); });
    rpc::register_function("make elsewhere", [](const std::string& owner, int first) {
      return rpc::remote(owner, "counter", first);
    });
    rpc::register_function("give back", [](const rpc::RRef& counter) { return counter; });
    rpc::register_function("count", [](const std::shared_ptr<Counter>&) { ++served; });
    rpc::register_function("late", [] { return late_answer(); });
    rpc::register_function("end", [] { rpc::shutdown(); });
    rpc::register_function("gate", [] { return std::make_shared<Gate>(); });
    rpc::register_function("gate.pass",
                           [](const std::shared_ptr<Gate>& gate) { return gate->opened; });
    rpc::register_function("gate.open",
                           [](const std::shared_ptr<Gate>& gate, const std::string& word) {
                             gate->opened->markCompleted(word);
                           });
    rpc::register_function("gate.break", [](const std::shared_ptr<Gate>& gate) {
      gate->opened->setError(std::make_exception_ptr(std::runtime_error("broken")));
    });
  }

  void TearDown() override {
    if (rpc::is_initialized()) rpc::shutdown();
  }

  void start(const rpc::Options& options = {}) {
    session_.emplace(rpc::init(name_of(rank_), group_, options));
  }
  void end_session() { session_.reset(); }
  std::string next() const { return name_of((rank_ + 1) % world_size_); }

  ProcessGroup group_ = default_process_group();
  int rank_ = group_.rank();
  int world_size_ = group_.world_size();

 private:
  std::optional<rpc::Session> session_;
};

TEST_F(Rpc, CallsByNameAndByRank) {
  start();
  for (int target = 0; target < world_size_; ++target) {
    EXPECT_EQ(rpc::call<std::string>(name_of(target), "name"), name_of(target));
    EXPECT_EQ(rpc::call<std::string>(target, "name"), name_of(target));
    EXPECT_EQ(rpc::worker(name_of(target)).rank, target);
    EXPECT_EQ(rpc::worker(target).name, name_of(target));
  }
  EXPECT_EQ(rpc::this_worker().rank, rank_);
  EXPECT_EQ(rpc::workers().size(), static_cast<std::size_t>(world_size_));
  const auto sum = rpc::call<at::Tensor>(next(), "add", torch::full({3}, rank_), 2);
  EXPECT_TRUE(torch::equal(sum, torch::full({3}, rank_ + 2.0)));
  EXPECT_EQ(rpc::call<std::string>(next(), "join", std::vector<std::string>{"ab", "", "c"}, true),
            "ABC");
}

TEST_F(Rpc, ValuesArriveAsTheyWereSent) {
  start();
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("a", torch::arange(7));
  dict.insert("", torch::empty({0, 3}));
  c10::List<c10::optional<double>> some({1.5, std::nullopt});
  const std::vector<c10::IValue> values{
      {},
      true,
      std::int64_t{-1} << 62,
      0.1,
      std::string("\0text", 5),
      dict,
      some,
      std::vector<std::int64_t>{1, 2, 3},
      std::vector<double>{},
      std::vector<bool>{true, false},
      std::vector<at::Tensor>{torch::ones(1), torch::zeros({2, 0})},
      std::make_tuple(std::string("x"), 3.5, torch::eye(2))};
  const auto echo =
      rpc::call(next(), "echo", values[0], values[1], values[2], values[3], values[4], values[5],
                values[6], values[7], values[8], values[9], values[10], values[11]);
  const auto& back = echo.toTupleRef().elements();
  ASSERT_EQ(back.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i != 5 && i != 10 && i != 11) {
      EXPECT_EQ(back[i], values[i]) << i;
    }
    EXPECT_EQ(*back[i].type(), *values[i].type()) << i;
  }
  EXPECT_TRUE(torch::equal(back[5].toGenericDict().at("a").toTensor(), torch::arange(7)));
  EXPECT_EQ(back[5].toGenericDict().at("").toTensor().sizes(), (std::vector<std::int64_t>{0, 3}));
  EXPECT_TRUE(torch::equal(back[11].toTupleRef().elements()[2].toTensor(), torch::eye(2)));
}

TEST_F(Rpc, TensorsOfEachDtypeAndSize) {
  start();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                           at::kChar, at::kByte, at::kBool, at::kComplexFloat}) {
    for (const std::int64_t numel : {0, 1, 7, 4096, 4097, 1'000'003}) {
      const auto sent = (torch::arange(numel) % 5 + rank_).to(dtype);
      const auto back = rpc::call(next(), "echo", sent).toTupleRef().elements()[0].toTensor();
      EXPECT_EQ(back.scalar_type(), dtype);
      EXPECT_TRUE(torch::equal(back, sent)) << dtype << " " << numel;
    }
  }
  const auto strided = torch::arange(24).reshape({4, 6}).t();
  const auto big = torch::rand({600, 700}).t();
  const auto sparse = torch::sparse_coo_tensor(torch::tensor({{0, 2, 2}, {1, 0, 0}}),
                                               torch::tensor({1.0, 2.0, 3.0}), {3, 2});
  const auto echo = rpc::call(next(), "echo", strided, big, sparse);
  const auto& back = echo.toTupleRef().elements();
  EXPECT_TRUE(torch::equal(back[0].toTensor(), strided));
  EXPECT_TRUE(torch::equal(back[1].toTensor(), big));
  EXPECT_TRUE(torch::equal(back[2].toTensor().to_dense(), sparse.to_dense()));
}

TEST_F(Rpc, ManyCallsAtOnce) {
  start({.num_worker_threads = 3});
  std::vector<rpc::Future<at::Tensor>> sums;
  for (int i = 0; i < 200; ++i) {
    sums.push_back(rpc::call_async<at::Tensor>(i % world_size_, "add", torch::full({17}, i), 0.5));
  }
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(torch::equal(sums[static_cast<std::size_t>(i)].wait(), torch::full({17}, i + 0.5)));
  }
  EXPECT_EQ(rpc::call<int>(next(), "relay", rpc::this_worker().name, 2), 2);
}

TEST_F(Rpc, ErrorsComeBackWithTypeWorkerAndText) {
  start();
  try {
    rpc::call<void>(next(), "fail", "beyond the end");
    ADD_FAILURE() << "no error";
  } catch (const rpc::RemoteError& error) {
    EXPECT_EQ(error.worker(), next());
    EXPECT_EQ(error.type_name(), "std::out_of_range");
    EXPECT_EQ(std::string(error.what()),
              concat("rpc call of 'fail' on worker '", next(), "' (rank ",
                     (rank_ + 1) % world_size_, "): std::out_of_range: beyond the end"));
  }
  const auto remote_message = [&](auto&&... arguments) {
    return message_of<rpc::RemoteError>([&] { rpc::call<void>(next(), arguments...); });
  };
  EXPECT_SAYS(remote_message("misuse"), "UsageError: never do that");
  EXPECT_SAYS(remote_message("ad", 1), "there is no function 'ad' here; did you mean add?");
  EXPECT_SAYS(remote_message("add", torch::ones(1)), "it takes 2 arguments, not 1");
  EXPECT_SAYS(remote_message("add", torch::ones(1), "x"),
              "argument 2: it is of type String, not Double");
  EXPECT_SAYS(remote_message("narrow", 300), "300 is not within -128 to 127");
  EXPECT_SAYS(message_of<UsageError>([&] { rpc::call("worker9", "name"); }),
              "there is no worker 'worker9'");
  EXPECT_SAYS(message_of<UsageError>([&] { rpc::call(99, "name"); }),
              "there is no worker of rank 99");
  EXPECT_SAYS(
      message_of<UsageError>([&] { rpc::call(next(), "echo", std::make_shared<Counter>(1)); }),
      "cannot be sent; keep it where it is and send an RRef to it");
  EXPECT_EQ(rpc::call<std::string>(next(), "name"), next()) << "and goes on";
}

TEST_F(Rpc, OversizedMessagesAreNotSent) {
  start({.max_message_bytes = 100'000});
  EXPECT_SAYS(message_of<UsageError>([&] { rpc::call(next(), "echo", torch::zeros(30'000)); }),
              "max_message_bytes is 100000");
  EXPECT_EQ(rpc::call<std::string>(next(), "name"), next());
  EXPECT_SAYS(message_of<rpc::RemoteError>([&] { rpc::call(next(), "fail at length", 200'000); }),
              "xxxxx");
}

TEST_F(Rpc, LaterAnswersHoldNoThread) {
  start({.num_worker_threads = 1});
  const auto gate = rpc::remote(next(), "gate");
  const auto first = gate.call_async<std::string>("gate.pass");
  const auto second = gate.call_async<std::string>("gate.pass");
  gate.call<void>("gate.open", "sesame");
  EXPECT_EQ(first.wait(), "sesame");
  EXPECT_EQ(second.wait(), "sesame");
  const auto broken = rpc::remote(next(), "gate");
  const auto failing = broken.call_async<std::string>("gate.pass");
  broken.call<void>("gate.break");
  EXPECT_SAYS(message_of<rpc::RemoteError>([&] { failing.wait(); }), "broken");
}

TEST_F(Rpc, ACallWithoutAnswerTimesOut) {
  start();
  const auto gate = rpc::remote(next(), "gate");
  const auto late = error_of<TimeoutError>([&] { gate.call_for<std::string>(20ms, "gate.pass"); });
  EXPECT_EQ(late.fields().timeout, 20ms);
  EXPECT_EQ(late.rank(), (rank_ + 1) % world_size_);
  EXPECT_SAYS(std::string(late.what()), "no answer within 20 ms");
  gate.call<void>("gate.open", "late");
  EXPECT_EQ(gate.call<std::string>("gate.pass"), "late");
}

TEST_F(Rpc, FunctionsThatAllWaitTimeOut) {
  start({.num_worker_threads = 1});
  // The only thread of each that runs functions waits for that of another.
  EXPECT_SAYS(message_of<Error>([&] {
                rpc::call<void>({next(), 500ms}, "circle", name_of(rank_), 4);
              }),
              "no answer within");
  rpc::shutdown();
}

TEST_F(Rpc, ACallWhoseFutureIsDroppedIsMade) {
  start();
  served = 0;
  group_.barrier();
  for (int i = 0; i < 100; ++i) rpc::remote(next(), "counter", 1).call_async<void>("count");
  rpc::shutdown();
  EXPECT_EQ(served.load(), 100);
}

TEST_F(Rpc, WhatCannotBeSentHoldsNothingUp) {
  start();
  const auto nowhere = torch::empty({3}, at::TensorOptions().device(at::kMeta));
  EXPECT_SAYS(message_of<UsageError>([&] { rpc::call(next(), "echo", nowhere); }),
              "rpc call of 'echo'");
  EXPECT_EQ(rpc::call<std::string>(next(), "name"), next());
  EXPECT_SAYS(message_of<rpc::RemoteError>([&] { rpc::call(next(), "end"); }),
              "leave it to main()");
  rpc::shutdown(20s);
}

TEST_F(Rpc, AnAnswerAfterTheSessionGoesNowhere) {
  start();
  const auto waiting = rpc::call_async<void>(next(), "late");
  rpc::call<void>(next(), "name");  // By now it is served.
  group_.barrier();
  end_session();
  EXPECT_SAYS(message_of<UsageError>([&] { waiting.wait(); }), "rpc has been shut down");
  late_answer()->markCompleted();
  late_answer() = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
  group_.barrier();
}

TEST_F(Rpc, ObjectsStayWithTheirOwner) {
  start();
  {
    const auto counter = rpc::remote(next(), "counter", 5);
    EXPECT_EQ(counter.owner(), (rank_ + 1) % world_size_);
    EXPECT_EQ(counter.call<int>("counter.add", 2), 7);
    EXPECT_EQ(counter.call<int>("counter.add", -7), 0);
    EXPECT_SAYS(message_of<rpc::RemoteError>([&] { counter.to_here(); }), "cannot be sent");
    if (!counter.is_owner()) {
      EXPECT_SAYS(message_of<UsageError>([&] { counter.local_value(); }), "owns; use to_here()");
    }
    const auto failed = rpc::remote(next(), "fail", "no value");
    EXPECT_SAYS(message_of<rpc::RemoteError>([&] { failed.to_here(); }), "no value");
    const auto own = rpc::RRef::to(std::make_shared<Counter>(rank_));
    EXPECT_EQ(own.local_value<std::shared_ptr<Counter>>()->value, rank_);
    EXPECT_EQ(own.call<int>("counter.add", 1), rank_ + 1);
    const auto tensor = rpc::remote(next(), "add", torch::ones(2), 1);
    EXPECT_TRUE(torch::equal(tensor.to_here<at::Tensor>(), torch::full({2}, 2.0)));
  }
  rpc::shutdown();
  EXPECT_EQ(Counter::alive.load(), 0) << "all references were given back";
}

TEST_F(Rpc, ReferencesArePassedOn) {
  start();
  {
    const int third = (rank_ + 2) % world_size_;
    const auto counter = rpc::remote(next(), "counter", 10);
    EXPECT_EQ(rpc::call<int>(third, "use", counter, 1), 11);  // To one that may be no owner.
    EXPECT_EQ(rpc::call<int>(next(), "use", counter, 1), 12);
    const auto mine = rpc::RRef::to(std::make_shared<Counter>(20));
    EXPECT_EQ(rpc::call<int>(third, "use", mine, 1), 21);
    const auto back = rpc::call<rpc::RRef>(third, "give back", mine);
    EXPECT_EQ(back.local_value<std::shared_ptr<Counter>>()->value, 21);
    const auto made = rpc::call<rpc::RRef>(next(), "make elsewhere", name_of(third), 30);
    EXPECT_EQ(made.owner(), third);
    EXPECT_EQ(made.call<int>("counter.add", 1), 31);
    // The only reference is the one under way.
    EXPECT_EQ(rpc::call_async<int>(third, "use", rpc::remote(next(), "counter", 40), 1).wait(), 41);
    rpc::call<rpc::RRef>(next(), "make elsewhere", name_of(rank_), 50);
  }
  rpc::shutdown();
  EXPECT_EQ(Counter::alive.load(), 0);
}

TEST_F(Rpc, WhatAMessageNamesThatIsNotSentIsGivenBack) {
  start({.max_message_bytes = 100'000});
  {
    const auto mine = rpc::RRef::to(std::make_shared<Counter>(1));
    const auto theirs = rpc::remote(next(), "counter", 2);
    EXPECT_SAYS(message_of<UsageError>([&] {
                  rpc::call((rank_ + 2) % world_size_, "echo", mine, theirs, torch::zeros(30'000));
                }),
                "max_message_bytes");
  }
  rpc::shutdown();
  EXPECT_EQ(Counter::alive.load(), 0);
}

// The owner of each tells another worker first; that must not keep answers from coming.
TEST_F(Rpc, ManyReferencesToReferencesAreFetchedAtOnce) {
  start();
  {
    const int third = (rank_ + 2) % world_size_;
    std::vector<rpc::RRef> kept;
    for (int i = 0; i < 12; ++i)
      kept.push_back(rpc::remote(next(), "make elsewhere", name_of(third), i));
    std::vector<std::future<int>> values;
    for (const rpc::RRef& each : kept) {
      values.push_back(std::async(std::launch::async, [&each] {
        return each.to_here<rpc::RRef>().call<int>("counter.add", 0);
      }));
    }
    for (int i = 0; i < 12; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)].get(), i);
  }
  rpc::shutdown();
  EXPECT_EQ(Counter::alive.load(), 0);
}

TEST_F(Rpc, OptionsThatCannotBeOnOneRankAreRefusedOnAll) {
  EXPECT_SAYS(message_of<UsageError>([&] { start({.num_worker_threads = rank_ == 0 ? 0 : 1}); }),
              "rpc::init: on rank 0 num_worker_threads is 0; at least 1");
  EXPECT_SAYS(message_of<UsageError>([&] { start({.timeout = rank_ == 0 ? 0ms : 60'000ms}); }),
              "rpc::init: on rank 0 the options: a timeout of 0 ms");
  EXPECT_FALSE(rpc::is_initialized());
}

TEST_F(Rpc, SessionsOneAfterTheOther) {
  for (int i = 0; i < 3; ++i) {
    start();
    EXPECT_SAYS(message_of<UsageError>([&] { start(); }), "there is a session already");
    EXPECT_EQ(rpc::call<std::string>(next(), "name"), next());
    rpc::shutdown();
    EXPECT_SAYS(message_of<UsageError>([&] { rpc::call(next(), "name"); }), "call rpc::init first");
  }
}

TEST_F(Rpc, NamesMustDiffer) {
  NEEDS_RANKS(2);
  EXPECT_SAYS(message_of<UsageError>([&] { const auto none = rpc::init("twin", group_); }),
              "are both named 'twin'");
  EXPECT_SAYS(message_of<UsageError>(
                  [&] { const auto none = rpc::init(rank_ == 1 ? "" : name_of(rank_), group_); }),
              "rank 1's name has 0 letters");
  EXPECT_FALSE(rpc::is_initialized());
}

}  // namespace
}  // namespace lockstep
