#include "diagnose/verdict/crash_report.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Lines = std::vector<std::string>;

StackFrame named(const std::string& function, const std::string& file = "", int line = 0) {
  return {.address = 0x5000,
          .module = "/home/me/train",
          .offset = 0x1f0,
          .lines = {{.function = function, .file = file, .line = line}}};
}

StackFrame unnamed(const std::string& module, std::uint64_t offset) {
  return {.address = 0x7000 + offset, .module = module, .offset = offset};
}

const StackFrame kInLibc = unnamed("/usr/lib/libc.so.6", 0x8aeec);

TEST(CrashReport, TheMessageNamesTheFirstPlaceInTheProgram) {
  CrashReport crash{.cause = "SIGSEGV at address 0x0",
                    .frames = {named("step(int)", "/src/train.cpp", 42), named("main")}};
  EXPECT_EQ(crash_message(crash), "SIGSEGV at address 0x0 in step(int) train.cpp:42");
  crash.frames.insert(crash.frames.begin(), kInLibc);
  EXPECT_EQ(crash_message(crash), "SIGSEGV at address 0x0 in step(int) train.cpp:42");
  crash.frames = {named("step(int)")};
  EXPECT_EQ(crash_message(crash), "SIGSEGV at address 0x0 in step(int)");
  crash.frames = {unnamed("/home/me/train", 0x1f0)};
  EXPECT_EQ(crash_message(crash), "SIGSEGV at address 0x0 in train(+0x1f0)");
  crash.frames = {kInLibc};
  EXPECT_EQ(crash_message(crash), "SIGSEGV at address 0x0");
  crash.frames = {};
  EXPECT_EQ(crash_message(crash), "SIGSEGV at address 0x0");
}

TEST(CrashReport, TheStackIsThatOfTheProgram) {
  CrashReport crash{.frames = {kInLibc, named("step(int)", "train.cpp", 42),
                               unnamed("/home/me/train", 0x20), named("main", "train.cpp", 90),
                               kInLibc, named("_start")}};
  const Lines lines = {"step(int) at train.cpp:42", "train(+0x20)", "main at train.cpp:90"};
  EXPECT_EQ(stack_lines(crash.frames), lines);
  // Statically linked.
  crash.frames = {named("__pthread_kill_implementation"), named("raise"), named("abort"),
                  named("step(int)"), named("main")};
  EXPECT_EQ(stack_lines(crash.frames), (Lines{"step(int) in train", "main in train"}));
  crash.frames = {};
  EXPECT_EQ(stack_lines(crash.frames), Lines{});
}

TEST(CrashReport, AThreadHasNoMain) {
  const CrashReport crash{.frames = {named("work()"), kInLibc, kInLibc}};
  EXPECT_EQ(stack_lines(crash.frames), (Lines{"work() in train"}));
}

TEST(CrashReport, WhatOfTheLibraryTheProgramCalledIsShown) {
  StackFrame strlen = kInLibc;
  strlen.lines = {{.function = "strlen"}};
  const CrashReport crash{.frames = {strlen, named("step(int)"), named("main")}};
  EXPECT_EQ(stack_lines(crash.frames),
            (Lines{"strlen in libc.so.6", "step(int) in train", "main in train"}));
  EXPECT_EQ(crash_message({.cause = "SIGSEGV", .frames = crash.frames}), "SIGSEGV in step(int)");
}

TEST(CrashReport, WithoutTheProgramTheStackIsWhatThereIs) {
  const CrashReport crash{.frames = {kInLibc, {.address = 0x10}}};
  EXPECT_EQ(stack_lines(crash.frames), (Lines{"0x10"}));
  EXPECT_EQ(stack_lines({kInLibc, kInLibc}), (Lines{"libc.so.6(+0x8aeec) (2 times)"}));
}

TEST(CrashReport, FunctionsInFunctionsAndRecursion) {
  StackFrame frame = named("outer()", "a.h", 2);
  frame.lines.insert(frame.lines.begin(), {.function = "inner()", .file = "a.h", .line = 1});
  const CrashReport crash{.frames = {frame, named("again()"), named("again()"), named("main")}};
  const Lines lines = {"inner() at a.h:1", "outer() at a.h:2", "again() in train (2 times)",
                       "main in train"};
  EXPECT_EQ(stack_lines(crash.frames), lines);
  EXPECT_EQ(shortened(lines, 4), lines);
  EXPECT_EQ(shortened(lines, 1), (Lines{"inner() at a.h:1", "... and 3 more"}));
}

TEST(CrashReport, OfTheStandardLibraryItShowsWhatFaulted) {
  const std::string file = "/usr/include/c++/12/bits/invoke.h";
  const CrashReport crash{
      .frames = {named("copy", file, 1), named("step()"), named("invoke", file, 2), named("main")}};
  EXPECT_EQ(stack_lines(crash.frames),
            (Lines{"copy at " + file + ":1", "step() in train", "main in train"}));
  EXPECT_EQ(crash_message({.cause = "SIGSEGV", .frames = crash.frames}), "SIGSEGV in step()");
}

TEST(CrashReport, TellsTheLastCollectives) {
  CrashReport crash;
  EXPECT_EQ(last_collectives(crash.collectives), "");
  crash.collectives = {{.call = "all_reduce number 87 of group 'default'"}};
  EXPECT_EQ(last_collectives(crash.collectives), "in all_reduce number 87 of group 'default'");
  crash.collectives = {{.call = "e", .ended = true},
                       {.call = "d"},
                       {.call = "c", .ended = true},
                       {.call = "b", .ended = true},
                       {.call = "a", .ended = true}};
  EXPECT_EQ(last_collectives(crash.collectives),
            "after e; before it d (still pending, wait() not called), c, b");
}

}  // namespace
}  // namespace lockstep
