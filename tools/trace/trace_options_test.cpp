#include "tools/trace/trace_options.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(TraceOptions, TakesATargetAndTraces) {
  const auto options = parse_trace_options({"merge", "out.json", "a.rank0.json", "a.rank1.json"});
  EXPECT_FALSE(options.help);
  EXPECT_EQ(options.target, "out.json");
  EXPECT_EQ(options.sources, (std::vector<std::string>{"a.rank0.json", "a.rank1.json"}));
}

TEST(TraceOptions, HelpIsAskedForInManyWays) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"-h"}, {"help"}, {"merge", "--help"}}) {
    EXPECT_TRUE(parse_trace_options(arguments).help);
  }
}

TEST(TraceOptions, WhatCannotWorkIsRefused) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{},
                                                    {"split"},
                                                    {"merge"},
                                                    {"merge", "out.json"},
                                                    {"merge", "--out", "x", "y"},
                                                    {"--verbose"}}) {
    EXPECT_THROW(parse_trace_options(arguments), UsageError);
  }
}

}  // namespace
}  // namespace lockstep
