#include "lockstep/pipeline/schedule.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep {
namespace {

using PassKind = PipelineAction::Kind;
using Schedule = PipelineSchedule;

/// Calls body(schedule, shape) for every shape that is tried.
template <class Body>
void for_all_shapes(Body&& body) {
  for (const Schedule schedule : {Schedule::kGPipe, Schedule::k1F1B, Schedule::kInterleaved1F1B}) {
    const int most_chunks = schedule == Schedule::kInterleaved1F1B ? 4 : 1;
    for (int ranks = 1; ranks <= 6; ++ranks) {
      for (int chunks = 1; chunks <= most_chunks; ++chunks) {
        for (int micro_batches = 1; micro_batches <= 19; ++micro_batches) {
          SCOPED_TRACE(concat(name_of(schedule), " ", ranks, " ranks, ", chunks, " chunks, ",
                              micro_batches, " micro-batches"));
          body(schedule, PipelineShape{ranks, chunks, micro_batches});
        }
      }
    }
  }
}

/// Whether micro-batches do not come out even in the groups in which several chunks take them.
bool is_uneven(const PipelineShape& shape) {
  return shape.chunks_per_rank > 1 && shape.micro_batches % shape.ranks != 0;
}

std::string plan_text(const std::vector<PipelineAction>& plan) {
  std::string text;
  for (const PipelineAction& action : plan) {
    text += concat(action.kind == PassKind::kForward ? 'F' : 'B', action.micro_batch,
                   std::string(static_cast<std::size_t>(action.chunk), '\''), ' ');
  }
  return text;
}

TEST(PipelineSchedule, HasEachPassOnceAndEachStageByMicroBatch) {
  for_all_shapes([](Schedule schedule, const PipelineShape& shape) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const auto plan = plan_pipeline(schedule, shape, rank);
      ASSERT_EQ(plan.size(),
                static_cast<std::size_t>(2 * shape.chunks_per_rank * shape.micro_batches));
      std::set<std::tuple<PassKind, int, int>> seen;
      for (const PipelineAction& action : plan) {
        const auto [kind, micro_batch, chunk] = action;
        ASSERT_TRUE(seen.insert({kind, chunk, micro_batch}).second);
        ASSERT_TRUE(micro_batch == 0 || seen.contains({kind, chunk, micro_batch - 1}));
        ASSERT_TRUE(kind == PassKind::kForward ||
                    seen.contains({PassKind::kForward, chunk, micro_batch}));
      }
    }
  });
}

// simulate_pipeline asserts it.
TEST(PipelineSchedule, NoRanksWaitForEachOther) {
  for_all_shapes([](Schedule schedule, const PipelineShape& shape) {
    const auto simulation = simulate_pipeline(schedule, shape);
    EXPECT_EQ(simulation.actions.size(),
              static_cast<std::size_t>(2 * shape.stages() * shape.micro_batches));
  });
}

TEST(PipelineSchedule, TheBubbleIsThatOfTheFormula) {
  for (const double backward : {1.0, 2.0, 2.5}) {
    for_all_shapes([&](Schedule schedule, const PipelineShape& shape) {
      const double simulated =
          simulate_pipeline(schedule, shape, {.forward = 1, .backward = backward}).bubble_fraction;
      const double formula = bubble_fraction(schedule, shape);
      if (is_uneven(shape)) {
        EXPECT_GE(simulated, formula - 1e-12);
        // No longer than that of plain 1F1B would be, over as many ranks.
        EXPECT_LE(simulated,
                  bubble_fraction(Schedule::k1F1B, {shape.ranks, 1, shape.micro_batches}) + 1e-12);
      } else {
        EXPECT_NEAR(simulated, formula, 1e-12);
      }
    });
  }
}

TEST(PipelineSchedule, ActivationsThatAreKept) {
  for_all_shapes([](Schedule schedule, const PipelineShape& shape) {
    const auto simulation = simulate_pipeline(schedule, shape);
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const int all = shape.chunks_per_rank * shape.micro_batches;
      int bound = all;
      if (schedule != Schedule::kGPipe) {
        bound = shape.chunks_per_rank == 1
                    ? shape.ranks - rank
                    : 2 * (shape.ranks - rank - 1) + (shape.chunks_per_rank - 1) * shape.ranks + 1;
      }
      const int most = simulation.max_activations[static_cast<std::size_t>(rank)];
      EXPECT_LE(most, std::min(all, bound));
      if (!is_uneven(shape)) {
        EXPECT_EQ(most, std::min(all, bound));
      }
    }
  });
}

TEST(PipelineSchedule, PlansAsInThePapers) {
  EXPECT_EQ(plan_text(plan_pipeline(Schedule::kGPipe, {2, 1, 3}, 0)), "F0 F1 F2 B0 B1 B2 ");
  EXPECT_EQ(plan_text(plan_pipeline(Schedule::k1F1B, {4, 1, 5}, 0)),
            "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4 ");
  EXPECT_EQ(plan_text(plan_pipeline(Schedule::k1F1B, {4, 1, 3}, 3)), "F0 B0 F1 B1 F2 B2 ");
  EXPECT_EQ(plan_text(plan_pipeline(Schedule::kInterleaved1F1B, {2, 2, 4}, 1)),
            "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3 ");
}

TEST(PipelineSchedule, WhatCannotBePlannedIsRefused) {
  EXPECT_THROW(plan_pipeline(Schedule::k1F1B, {0, 1, 1}, 0), UsageError);
  EXPECT_THROW(plan_pipeline(Schedule::k1F1B, {1, 1, 0}, 0), UsageError);
  EXPECT_THROW(plan_pipeline(Schedule::kInterleaved1F1B, {1, 0, 1}, 0), UsageError);
  EXPECT_THROW(plan_pipeline(Schedule::kGPipe, {2, 2, 4}, 0), UsageError);
  EXPECT_THROW(plan_pipeline(Schedule::k1F1B, {2, 1, 4}, 2), UsageError);
  EXPECT_THROW(plan_pipeline(Schedule::k1F1B, {2, 1, 4}, -1), UsageError);
  EXPECT_THROW(bubble_fraction(Schedule::kGPipe, {2, 2, 4}), UsageError);
}

TEST(PipelineSchedule, Names) {
  for (const Schedule schedule : {Schedule::kGPipe, Schedule::k1F1B, Schedule::kInterleaved1F1B}) {
    EXPECT_EQ(pipeline_schedule_of(name_of(schedule)), schedule);
  }
  EXPECT_THROW(pipeline_schedule_of("zero-bubble"), UsageError);
}

}  // namespace
}  // namespace lockstep
