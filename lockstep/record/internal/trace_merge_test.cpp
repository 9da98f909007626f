#include "lockstep/record/internal/trace_merge.h"

#include <fstream>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

using nlohmann::json;

class TraceMerge : public ::testing::Test {
 protected:
  // An operator of 10 µs and a barrier of 4 µs, `late_us` after the base.
  std::filesystem::path write(int rank, double late_us, std::int64_t base_ns = 1'000'000,
                              const std::string& process = "rank ") const {
    const int pid = 700 + rank;
    const json head = {{"ph", "M"},  {"name", "process_name"},
                       {"pid", pid}, {"tid", 0},
                       {"ts", 1.5},  {"args", {{"name", concat(process, rank)}}}};
    const json trace = {
        {"host_name", concat("node", rank)},
        {"baseTimeNanoseconds", base_ns},
        {"traceEvents",
         {head,
          {{"ph", "M"},
           {"name", "process_labels"},
           {"pid", pid},
           {"tid", 0},
           {"args", {{"labels", "CPU"}}}},
          {{"ph", "M"},
           {"name", "thread_name"},
           {"pid", pid},
           {"tid", 5},
           {"ts", 1.5},
           {"args", {{"name", "main"}}}},
          {{"ph", "M"},
           {"name", "process_labels"},
           {"pid", 0},
           {"tid", 0},
           {"args", {{"labels", "GPU 0"}}}},
          {{"ph", "X"},
           {"name", "kernel"},
           {"pid", 0},
           {"tid", 7},
           {"ts", late_us + 3},
           {"dur", 2}},
          {{"ph", "X"},
           {"name", "aten::mm"},
           {"pid", pid},
           {"tid", 5},
           {"ts", late_us},
           {"dur", 10},
           {"args", {{"x", 1}}}},
          {{"ph", "s"}, {"name", "fwdbwd"}, {"id", 3}, {"pid", pid}, {"tid", 5}, {"ts", late_us}},
          {{"ph", "X"},
           {"name", kClockSpan},
           {"pid", pid},
           {"tid", 5},
           {"ts", late_us + 20},
           {"dur", 4}},
          {{"ph", "X"},
           {"name", "PyTorch Profiler (0)"},
           {"pid", "Spans"},
           {"tid", "x"},
           {"ts", 0},
           {"dur", 900}}}},
        {"traceName", "x"}};
    const auto path = folder_.path() / concat("steps.rank", rank, ".json");
    std::ofstream(path) << trace.dump(2);
    return path;
  }
  json merged() const {
    std::ifstream file(path_);
    return json::parse(file);
  }
  // By process and name.
  std::map<std::pair<std::int64_t, std::string>, json> events() const {
    std::map<std::pair<std::int64_t, std::string>, json> all;
    const json trace = merged();
    for (const json& event : trace.at("traceEvents")) {
      all[{event.at("pid").get<std::int64_t>(), event.at("name").get<std::string>()}] = event;
    }
    return all;
  }

  TemporaryDirectory folder_{std::filesystem::temp_directory_path(), "trace-merge-"};
  std::filesystem::path path_ = folder_.path() / "steps.json";
};

TEST_F(TraceMerge, ARankIsAProcessAndItsDeviceAnother) {
  const MergedTrace result = merge_traces(path_, {write(1, 102), write(0, 100)});
  EXPECT_EQ(result.ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(result.largest_shift_us, 0);
  const auto all = events();
  EXPECT_EQ(result.events, std::ssize(merged().at("traceEvents")));
  for (const int rank : {0, 1}) {
    EXPECT_EQ(all.at({rank, "process_name"}).at("args").at("name"), concat("rank ", rank));
    EXPECT_EQ(all.at({rank, "process_labels"}).at("args").at("labels"), concat("node", rank));
    EXPECT_EQ(all.at({rank, "aten::mm"}).at("ts"), 2.0 * rank);
    EXPECT_EQ(all.at({rank, "aten::mm"}).at("args").at("x"), 1);
    EXPECT_EQ(all.at({rank, "thread_name"}).at("args").at("name"), "main");
    EXPECT_EQ(all.at({rank, "fwdbwd"}).at("id").get<std::int64_t>(),
              3 + (std::int64_t{rank} << 32));
    EXPECT_EQ(all.at({1'000'000 + rank, "kernel"}).at("ts"), 2.0 * rank + 3);
    EXPECT_EQ(all.at({1'000'000 + rank, "process_name"}).at("args").at("name"),
              concat("rank ", rank, ": GPU 0"));
  }
  for (const auto& [key, event] : all) EXPECT_EQ(key.second.find("Profiler"), std::string::npos);
}

TEST_F(TraceMerge, BasesAndClocksArePutRight) {
  // Rank 1 counts from 1 ms later, and its clock is 5 ms behind.
  const MergedTrace result = merge_traces(path_, {write(0, 7000), write(1, 1000, 2'000'000)});
  EXPECT_EQ(result.largest_shift_us, 5000);
  EXPECT_EQ(events().at({0, "aten::mm"}).at("ts"), 0.0);
  EXPECT_EQ(events().at({1, "aten::mm"}).at("ts"), 0.0);
}

TEST_F(TraceMerge, WhatIsNoTraceOfARankIsRefused) {
  EXPECT_THROW(merge_traces(path_, {}), UsageError);
  const auto rank_0 = write(0, 0);
  EXPECT_THROW(merge_traces(path_, {rank_0, rank_0}), UsageError);
  EXPECT_THROW(merge_traces(path_, {write(1, 0, 0, "python ")}), UsageError);
  EXPECT_THROW(merge_traces(path_, {folder_.path() / "none.json"}), SystemError);
  EXPECT_THROW(merge_traces(path_, {folder_.path()}), SystemError);
  for (const char* text : {"", "[]", "{}", "[1, 2]", "{\"traceEvents\": [{\"ph\": "}) {
    std::ofstream(folder_.path() / "broken.json") << text;
    EXPECT_THROW(merge_traces(path_, {folder_.path() / "broken.json"}), CorruptFile) << text;
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TraceMerge, TheTracesOfAFolderAreFoundByRank) {
  EXPECT_THROW(rank_traces_in(folder_.path()), UsageError);
  EXPECT_THROW(rank_traces_in(folder_.path() / "none"), SystemError);
  const auto rank_10 = write(10, 0);
  const auto rank_2 = write(2, 0);
  std::ofstream(folder_.path() / "steps.json") << "{}";
  std::ofstream(folder_.path() / "steps.rankx.json") << "{}";
  EXPECT_EQ(rank_traces_in(folder_.path()), (std::vector{rank_2, rank_10}));
  std::ofstream(folder_.path() / "other.rank0.json") << "{}";
  EXPECT_THROW(rank_traces_in(folder_.path()), UsageError);
}

}  // namespace
}  // namespace lockstep
