#include "tools/report/report_options.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(ReportOptions, TakesAFolderAndAFile) {
  const ReportOptions options = parse_report_options({"--output", "page.html", "runs/digits"});
  EXPECT_EQ(options.folder, "runs/digits");
  EXPECT_EQ(options.output, "page.html");
  EXPECT_TRUE(parse_report_options({"runs/digits"}).output.empty());
  EXPECT_TRUE(parse_report_options({"--help"}).help);
}

TEST(ReportOptions, WhatCannotWorkIsRefused) {
  EXPECT_THROW(parse_report_options({}), UsageError);
  EXPECT_THROW(parse_report_options({"a", "b"}), UsageError);
  EXPECT_THROW(parse_report_options({"a", "--format=pdf"}), UsageError);
}

}  // namespace
}  // namespace lockstep
