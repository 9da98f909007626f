#include "lockstep/comm/backends/hierarchical/chunk_plan.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

namespace lockstep::hierarchical {
namespace {

constexpr int kMostRanks = 6;

// All ways to distribute so many ranks over machines.
std::vector<MemoryDomains> all_groupings(int ranks) {
  std::vector<MemoryDomains> all{{}};
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<MemoryDomains> longer;
    for (const MemoryDomains& domains : all) {
      for (int domain = 0; domain <= rank; ++domain) {
        const bool is_new = domain == rank;
        if (!is_new && domains[static_cast<std::size_t>(domain)] != domain) continue;
        longer.push_back(domains);
        longer.back().push_back(domain);
      }
    }
    all = longer;
  }
  return all;
}

// Carries out the plans of all ranks on values that say where they come from.
class Simulation {
 public:
  using Values = std::map<int, std::string>;  // by chunk

  Simulation(const MemoryDomains& domains, ChunkPlan (*make)(const Machines&)) {
    for (int rank = 0; rank < static_cast<int>(domains.size()); ++rank) {
      machines_.push_back(machines_of(domains, rank));
      plans_.push_back(make(machines_.back()));
    }
  }

  int ranks() const { return static_cast<int>(plans_.size()); }
  const Machines& machines(int rank) const { return machines_[static_cast<std::size_t>(rank)]; }
  const ChunkPlan& plan(int rank) const { return plans_[static_cast<std::size_t>(rank)]; }

  // What the ranks of each machine have in a step: it must be all of them, or none.
  void expect_together(LocalStep ChunkPlan::*step) const {
    for (int rank = 0; rank < ranks(); ++rank) {
      for (const int peer : machines(rank).local_ranks()) {
        EXPECT_EQ((plan(rank).*step).happens, (plan(peer).*step).happens);
        EXPECT_EQ((plan(rank).*step).parts, (plan(peer).*step).parts);
      }
      if (!(plan(rank).*step).happens) {
        EXPECT_TRUE((plan(rank).*step).outgoing.empty());
        EXPECT_TRUE((plan(rank).*step).incoming.empty());
      }
      for (const LocalMove& move : (plan(rank).*step).outgoing) {
        EXPECT_GE(move.part, 0);
        EXPECT_LT(move.part, (plan(rank).*step).parts);
      }
    }
  }

  // `values`, by rank, before and after.
  std::vector<Values> run_moves(LocalStep ChunkPlan::*step,
                                const std::vector<Values>& values) const {
    std::vector<Values> after = values;
    for (int rank = 0; rank < ranks(); ++rank) {
      for (const LocalMove& move : (plan(rank).*step).incoming) {
        const int peer = machines(rank).local_ranks().at(static_cast<std::size_t>(move.peer));
        after[static_cast<std::size_t>(rank)][move.chunk] = slot(step, peer, move, values);
      }
    }
    return after;
  }

  // What a peer has put into a part of its slot, which must be the chunk that is expected there.
  std::string slot(LocalStep ChunkPlan::*step, int peer, const LocalMove& move,
                   const std::vector<Values>& values) const {
    std::string found;
    for (const LocalMove& sent : (plan(peer).*step).outgoing) {
      if (sent.part != move.part) continue;
      EXPECT_TRUE(found.empty()) << "two chunks in one part";
      EXPECT_EQ(sent.chunk, move.chunk);
      const Values& own = values[static_cast<std::size_t>(peer)];
      if (!own.contains(sent.chunk)) return "nothing";
      found = own.at(sent.chunk);
    }
    return found;
  }

 private:
  std::vector<Machines> machines_;
  std::vector<ChunkPlan> plans_;
};

std::string text_of(const MemoryDomains& domains) {
  std::string text;
  for (const int domain : domains) text += std::to_string(domain);
  return text;
}

template <class Body>
void for_all_groupings(Body&& body) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    for (const MemoryDomains& domains : all_groupings(ranks)) {
      SCOPED_TRACE(text_of(domains));
      body(domains);
    }
  }
}

TEST(ChunkPlan, AllGatherGivesEveryRankAllChunksAndEachMachineEachOnce) {
  for_all_groupings([](const MemoryDomains& domains) {
    const Simulation group(domains, &plan_all_gather);
    group.expect_together(&ChunkPlan::before);
    group.expect_together(&ChunkPlan::after);
    std::vector<Simulation::Values> values;
    for (int rank = 0; rank < group.ranks(); ++rank) {
      values.push_back({{rank, "chunk " + std::to_string(rank)}});
    }
    values = group.run_moves(&ChunkPlan::before, values);
    const std::vector<Simulation::Values> sent = values;
    std::map<std::pair<int, int>, int> arrivals;  // by machine and chunk
    for (int rank = 0; rank < group.ranks(); ++rank) {
      const Machines& machines = group.machines(rank);
      for (int machine = 0; machine < machines.count && machines.has_share(); ++machine) {
        if (machine == machines.machine) continue;
        const int partner = machines.partners.at(static_cast<std::size_t>(machine));
        for (const int chunk : group.plan(rank).carried.at(static_cast<std::size_t>(machine))) {
          ASSERT_TRUE(sent[static_cast<std::size_t>(partner)].contains(chunk));
          values[static_cast<std::size_t>(rank)][chunk] =
              sent[static_cast<std::size_t>(partner)].at(chunk);
          ++arrivals[{machines.machine, chunk}];
        }
      }
    }
    for (const auto& [place, count] : arrivals) EXPECT_EQ(count, 1);
    values = group.run_moves(&ChunkPlan::after, values);
    for (const Simulation::Values& of_rank : values) {
      ASSERT_EQ(of_rank.size(), domains.size());
      for (const auto& [chunk, value] : of_rank) EXPECT_EQ(value, "chunk " + std::to_string(chunk));
    }
  });
}

// The sum of a chunk over all ranks, in the order of an all-reduce: "(0 1) (2)".
std::string sum_in_order(const Machines& machines) {
  std::string sum;
  for (const std::vector<int>& ranks : machines.ranks) {
    sum += "(";
    for (const int rank : ranks) sum += " " + std::to_string(rank);
    sum += " )";
  }
  return sum;
}

TEST(ChunkPlan, ReduceScatterSumsEachRankOnceInOrderAndSendsEachMachineEachSumOnce) {
  for_all_groupings([](const MemoryDomains& domains) {
    const Simulation group(domains, &plan_reduce_scatter);
    group.expect_together(&ChunkPlan::before);
    group.expect_together(&ChunkPlan::after);
    const int ranks = group.ranks();
    std::vector<Simulation::Values> inputs(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      for (int chunk = 0; chunk < ranks; ++chunk) {
        inputs[static_cast<std::size_t>(rank)][chunk] = std::to_string(rank);
      }
    }
    // The sums of machines.
    std::vector<Simulation::Values> sums(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      for (const LocalMove& move : group.plan(rank).before.summed) {
        std::string sum = "(";
        for (const int peer : group.machines(rank).local_ranks()) {
          sum += " " + (peer == rank ? inputs[static_cast<std::size_t>(peer)].at(move.chunk)
                                     : group.slot(&ChunkPlan::before, peer, move, inputs));
        }
        sums[static_cast<std::size_t>(rank)][move.chunk] = sum + " )";
      }
    }
    std::vector<Simulation::Values> values(static_cast<std::size_t>(ranks));
    std::map<std::pair<int, int>, int> arrivals;  // by sending machine and chunk
    for (int rank = 0; rank < ranks; ++rank) {
      const Machines& machines = group.machines(rank);
      if (!machines.has_share()) continue;
      for (const int chunk :
           group.plan(rank).carried.at(static_cast<std::size_t>(machines.machine))) {
        std::string& sum = values[static_cast<std::size_t>(rank)][chunk];
        for (int machine = 0; machine < machines.count; ++machine) {
          const int partner = machines.partners.at(static_cast<std::size_t>(machine));
          ASSERT_TRUE(sums[static_cast<std::size_t>(partner)].contains(chunk));
          sum += sums[static_cast<std::size_t>(partner)].at(chunk);
          if (partner != rank) ++arrivals[{machine, chunk}];
        }
      }
    }
    for (const auto& [place, count] : arrivals) EXPECT_EQ(count, 1);
    values = group.run_moves(&ChunkPlan::after, values);
    for (int rank = 0; rank < ranks; ++rank) {
      const Simulation::Values& own = values[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(own.contains(rank));
      EXPECT_EQ(own.at(rank), sum_in_order(group.machines(rank)));
    }
  });
}

TEST(ChunkPlan, UsesAllRanksOfMachinesOfOneSize) {
  const Machines machines = machines_of({0, 0, 2, 2}, 1);
  const ChunkPlan plan = plan_all_gather(machines);
  EXPECT_FALSE(plan.before.happens);
  EXPECT_EQ(plan.carried, (std::vector<std::vector<int>>{{1}, {3}}));
  EXPECT_FALSE(plan_reduce_scatter(machines).after.happens);
}

TEST(ChunkPlan, LetsTheRanksOfTheSmallestMachineCarryWhatOthersHaveMore) {
  const ChunkPlan carrier = plan_reduce_scatter(machines_of({0, 1, 1, 1}, 1));
  EXPECT_EQ(carrier.carried, (std::vector<std::vector<int>>{{0}, {1, 2, 3}}));
  EXPECT_EQ(carrier.after.outgoing,
            (std::vector<LocalMove>{{.chunk = 2, .part = 0}, {.chunk = 3, .part = 1}}));
  const ChunkPlan other = plan_reduce_scatter(machines_of({0, 1, 1, 1}, 3));
  EXPECT_TRUE(other.carried.empty());
  EXPECT_EQ(other.after.incoming, (std::vector<LocalMove>{{.chunk = 3, .part = 1, .peer = 0}}));
}

}  // namespace
}  // namespace lockstep::hierarchical
