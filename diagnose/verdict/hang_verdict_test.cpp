#include "diagnose/verdict/hang_verdict.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Call = RecentCalls::Call;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

Call call(const char* operation, std::uint64_t sequence, bool ended, const char* group = "default",
          const char* about = "") {
  Call made{.sequence = sequence, .waited = true, .ended = ended};
  std::strcpy(made.operation.data(), operation);
  std::strcpy(made.group.data(), group);
  std::strcpy(made.about.data(), about);
  return made;
}

RankPlace rank(int number, std::vector<Call> calls, const char* function, char state = 'S') {
  const StackFrame frame{.address = 1,
                         .module = "/bin/train",
                         .lines = {{.function = function, .file = "/src/train.cpp", .line = 88}}};
  return {
      .worker = {.rank = number, .local_rank = number, .pid = 100 + number},
      .calls = std::move(calls),
      .stacks = {
          .threads = {{.id = 100 + number, .name = "train", .state = state, .frames = {frame}}}}};
}

const AwaitedCall kAwaited{.operation = "all_reduce",
                           .group = "default",
                           .sequence = 12,
                           .waited = std::chrono::milliseconds(5000)};

const std::vector<Call> kWaits = {call("all_reduce", 13, false),
                                  call("all_reduce", 12, false, "default", "bucket 2: a … b"),
                                  call("all_reduce", 11, true)};

TEST(HangVerdict, NamesWhoNeverCameAndWhereItIs) {
  const std::string text =
      hang_verdict({rank(0, kWaits, "wait()"), rank(1, kWaits, "wait()"),
                    rank(2, {call("all_reduce", 11, true)}, "read_batch()", 'R')},
                   kAwaited, "");
  EXPECT_THAT(text,
              StartsWith("lockstep: hang: rank 2 (pid 102) never entered all_reduce number 12 of "
                         "group 'default' (bucket 2: a … b), and is in no collective (last: "
                         "all_reduce number 11 of group 'default'); ranks 0, 1 have waited for "
                         "5000 ms\n"
                         "lockstep:   main thread is in read_batch() train.cpp:88\n"
                         "lockstep:     main thread 102 'train' runs:\n"
                         "lockstep:       read_batch() at /src/train.cpp:88\n"));
  EXPECT_THAT(text, HasSubstr("lockstep:   rank 0 is in all_reduce number 12 of group 'default' "
                              "(bucket 2: a … b)\n"));
}

TEST(HangVerdict, ShowsThePythonStackFirst) {
  RankPlace late = rank(1, {call("all_reduce", 11, true)}, "_PyEval_EvalFrameDefault");
  late.python = {
      {.frames = {{.function = "wait", .file = "/usr/lib/python3.11/threading.py", .line = 327}}},
      {.took_signal = true,
       .frames = {{.function = "get", .file = "/usr/lib/python3.11/queue.py", .line = 171},
                  {.function = "read_batch", .file = "/src/train.py", .line = 12}}}};
  EXPECT_THAT(
      hang_verdict({rank(0, kWaits, "wait()"), late}, kAwaited, ""),
      HasSubstr(
          "lockstep:   main thread is in get queue.py:171, called from read_batch train.py:12\n"
          "lockstep:     main thread in Python:\n"
          "lockstep:       get at /usr/lib/python3.11/queue.py:171\n"
          "lockstep:       read_batch at /src/train.py:12\n"
          "lockstep:     thread in Python: wait threading.py:327\n"
          "lockstep:     main thread 101 'train' waits:\n"));
  EXPECT_THAT(all_stacks(late),
              HasSubstr("\nmain thread in Python:\n  get at /usr/lib/python3.11/queue.py:171\n"));
  late.python[1].frames.clear();  // It runs no Python.
  EXPECT_EQ(main_place(late), "_PyEval_EvalFrameDefault train.cpp:88");
}

TEST(HangVerdict, NamesWhoIsInAnotherCall) {
  const std::string text = hang_verdict(
      {rank(0, kWaits, "wait()"), rank(1, {call("broadcast", 12, false)}, "wait()")}, kAwaited, "");
  EXPECT_THAT(text, HasSubstr("rank 1 (pid 101) never entered all_reduce number 12 of "
                              "group 'default' (bucket 2: a … b), but is in broadcast number 12 of "
                              "group 'default'; rank 0 has waited"));
}

TEST(HangVerdict, WhoIsStoppedInTheCallItselfIsLate) {
  const std::string text =
      hang_verdict({rank(0, kWaits, "wait()"), rank(1, kWaits, "copy()", 'T')}, kAwaited, "");
  EXPECT_THAT(text,
              StartsWith("lockstep: hang: rank 1 (pid 101) is in all_reduce number 12 of group "
                         "'default' (bucket 2: a … b), and is stopped by a signal; rank 0 has "
                         "waited"));
  EXPECT_THAT(text, HasSubstr("lockstep:   main thread is in copy() train.cpp:88\n"));
}

TEST(HangVerdict, WhoIsStoppedAfterTheCallIsLate) {
  const std::string text =
      hang_verdict({rank(1, {call("all_reduce", 12, true)}, "work()", 'T')}, kAwaited, "");
  EXPECT_THAT(text, StartsWith("lockstep: hang: rank 1 (pid 101) has left all_reduce number 12 of "
                               "group 'default', and is stopped by a signal\n"));
}

TEST(HangVerdict, ThoseOfAnotherGroupAreNotLate) {
  const AwaitedCall in_pair{.operation = "all_reduce", .group = "pair", .sequence = 3};
  const std::vector<Call> waits = {call("all_reduce", 3, false, "pair")};
  const std::string text = hang_verdict(
      {rank(0, waits, "wait()"), rank(1, {call("all_reduce", 2, true, "pair")}, "work()"),
       rank(2, {call("all_reduce", 9, true)}, "work()")},
      in_pair, "");
  EXPECT_THAT(text, StartsWith("lockstep: hang: rank 1 "));
  EXPECT_THAT(text, Not(HasSubstr("hang: rank 2")));
}

TEST(HangVerdict, WhoHasBegunTheCallAndDoesSomethingElseIsLate) {
  Call begun = call("all_reduce", 12, false);
  begun.waited = false;
  const std::string text =
      hang_verdict({rank(0, kWaits, "wait()"), rank(1, {begun}, "hook()")}, kAwaited, "");
  EXPECT_THAT(text,
              StartsWith("lockstep: hang: rank 1 (pid 101) has begun all_reduce "
                         "number 12 of group 'default' (bucket 2: a … b), but does not wait for "
                         "it; rank 0 has waited"));
}

TEST(HangVerdict, WhoWaitsElsewhereForALateOneIsNotLateItself) {
  const std::string text = hang_verdict(
      {rank(0, kWaits, "wait()"), rank(1, {call("all_reduce", 3, false, "pair")}, "wait()"),
       rank(2, {call("all_reduce", 11, true)}, "work()")},
      kAwaited, "");
  EXPECT_THAT(text, StartsWith("lockstep: hang: rank 2 "));
  EXPECT_THAT(text, HasSubstr("lockstep:   rank 1 never entered all_reduce number 12 of group "
                              "'default' (bucket 2: a … b), but is in all_reduce number 3 of group "
                              "'pair'\n"));
}

TEST(HangVerdict, WhoHasLeftTheCallIsNotLate) {
  const std::string text =
      hang_verdict({rank(0, kWaits, "wait()"), rank(1, {call("all_reduce", 12, true)}, "work()"),
                    rank(2, {}, "work()")},
                   kAwaited, "");
  EXPECT_THAT(text, StartsWith("lockstep: hang: rank 2 "));
  EXPECT_THAT(text, HasSubstr("lockstep:   rank 1 has left all_reduce number 12"));
}

TEST(HangVerdict, WithoutCallsOrStacks) {
  RankPlace silent{.worker = {.rank = 1, .pid = 7}, .stacks = {.trouble = "not permitted"}};
  const std::string text = hang_verdict({rank(0, kWaits, "wait()"), silent}, kAwaited, "");
  EXPECT_THAT(text,
              HasSubstr("never entered all_reduce number 12 of group 'default' (bucket 2: a … b), "
                        "and has entered no collective; rank 0 has waited for 5000 ms\n"
                        "lockstep:     its stack is unknown: not permitted\n"));
}

TEST(HangVerdict, WhereOnlyAnotherMachineWaits) {
  const std::string late = hang_verdict({rank(2, {call("all_reduce", 11, true)}, "work()", 'R')},
                                        {}, "rank 0 on a left its group: too late");
  EXPECT_THAT(late, StartsWith("lockstep: hang: rank 2 (pid 102) is in no collective (last: "
                               "all_reduce number 11 of group 'default')\n"));
  EXPECT_THAT(late, HasSubstr("lockstep:   cause: rank 0 on a left its group: too late\n"));
  EXPECT_THAT(hang_verdict({rank(0, kWaits, "wait()")}, kAwaited, ""),
              StartsWith("lockstep: hang: the late rank is on another machine; all ranks here are "
                         "in all_reduce number 12 of group 'default' (bucket 2: a … b)\n"));
}

TEST(HangVerdict, CountsTheThreadsThatItDoesNotShow) {
  RankPlace late = rank(1, {}, "work()");
  for (int i = 0; i < 8; ++i) late.stacks.threads.push_back({.id = 110 + i, .name = "gloo"});
  const std::string text = hang_verdict({rank(0, kWaits, "wait()"), late}, kAwaited, "");
  EXPECT_THAT(text, HasSubstr("thread 115 'gloo' is in state ?\n"
                              "lockstep:     and 2 more threads\n"));
}

TEST(HangVerdict, AFileHasAllThreadsAndCalls) {
  RankPlace place = rank(1, {call("barrier", 4, false), call("all_reduce", 3, true)}, "wait()");
  place.stacks.threads.push_back({.id = 110, .name = "gloo"});
  EXPECT_EQ(all_stacks(place),
            "rank 1 (pid 101)\n"
            "  in barrier number 4 of group 'default'\n"
            "  after all_reduce number 3 of group 'default'\n"
            "main thread 101 'train' waits\n"
            "  wait() at /src/train.cpp:88\n"
            "thread 110 'gloo' is in state ?\n");
}

}  // namespace
}  // namespace lockstep
