#include "lockstep/job/internal/slurm_lists.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(SlurmLists, TheFirstHost) {
  EXPECT_EQ(first_host("n1"), "n1");
  EXPECT_EQ(first_host("login,n1"), "login");
  EXPECT_EQ(first_host("n[1-2]"), "n1");
  EXPECT_EQ(first_host("n[03-05,9]-ib,login"), "n03-ib");
  EXPECT_EQ(first_host("rack[2,5]node[07-09],other[1-3]"), "rack2node07");
  EXPECT_EQ(first_host("10.0.0.[7-8]"), "10.0.0.7");
  for (const char* none : {"", ",n1", "n[", "n[]", "n[1-2", "n]"}) {
    EXPECT_EQ(first_host(none), std::nullopt) << none;
  }
}

TEST(SlurmLists, TasksOnANode) {
  EXPECT_EQ(tasks_on_node("4", 0), 4);
  EXPECT_EQ(tasks_on_node("3(x2),1,5(x10)", 0), 3);
  EXPECT_EQ(tasks_on_node("3(x2),1,5(x10)", 1), 3);
  EXPECT_EQ(tasks_on_node("3(x2),1,5(x10)", 2), 1);
  EXPECT_EQ(tasks_on_node("3(x2),1,5(x10)", 12), 5);
  EXPECT_EQ(tasks_on_node("3(x2),1,5(x10)", 13), std::nullopt);
  for (const char* none : {"", "x", "(x2)", "3(x", "3(x2", "-1", "3 "}) {
    EXPECT_EQ(tasks_on_node(none, 1), std::nullopt) << none;
  }
}

}  // namespace
}  // namespace lockstep
