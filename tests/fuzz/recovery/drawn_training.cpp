#include "tests/fuzz/recovery/drawn_training.h"

#include <array>
#include <random>
#include <string_view>

#include "lockstep/base/internal/concat.h"

namespace lockstep::testing {
namespace {

// The standard fixes what mt19937_64 gives, but not what its distributions do.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  /// 0 to `sides` - 1.
  int roll(int sides) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(sides)); }
  bool one_in(int sides) { return roll(sides) == 0; }

 private:
  std::mt19937_64 engine_;
};

constexpr std::array<std::string_view, 4> kOptimizerNames = {"SGD", "SGD with momentum", "Adam",
                                                             "AdamW"};

// Enough for machines to join and leave meanwhile.
constexpr std::int64_t kStepsOfElastic = 30;

std::vector<std::vector<int>> draw_groups(Dice& dice, int world_size) {
  std::vector<std::vector<int>> groups;
  for (int count = dice.roll(3); count > 0; --count) {
    std::vector<int> ranks;
    for (int rank = 0; rank < world_size; ++rank) {
      if (!dice.one_in(3)) ranks.push_back(rank);
    }
    if (!ranks.empty()) groups.push_back(ranks);
  }
  return groups;
}

}  // namespace

DrawnTraining DrawnTraining::of(std::uint64_t seed, int world_size, Loop loop) {
  Dice dice(seed);
  DrawnTraining drawn;
  drawn.loop = loop;
  drawn.world_size = world_size;
  drawn.steps = 20 + dice.roll(20);
  drawn.width = 1 + dice.roll(16);
  drawn.optimizer = static_cast<Optimizer>(dice.roll(kOptimizerNames.size()));
  drawn.has_schedule = dice.one_in(2);
  drawn.has_dropout = dice.one_in(2);
  drawn.has_batch_norm = dice.one_in(2);
  drawn.has_sync_batch_norm = drawn.has_batch_norm && dice.one_in(2);
  drawn.has_large_layer = dice.one_in(3);
  drawn.is_ragged = dice.one_in(3);
  drawn.accumulation_steps = dice.one_in(3) ? 1 + dice.roll(3) : 1;
  drawn.groups = draw_groups(dice, world_size);
  drawn.group_backend = dice.one_in(4) ? "gloo" : "";
  drawn.groups_every = drawn.groups.empty() ? 0 : 1 + dice.roll(5);
  drawn.evaluate_every = dice.one_in(2) ? 1 + dice.roll(7) : 0;
  drawn.memory_every = 1 + dice.roll(8);
  drawn.save_interval = dice.one_in(2) ? 1 + dice.roll(10) : 0;
  drawn.check_replicas_every = dice.one_in(4) ? 1 + dice.roll(5) : 0;
  // Drawn apart, so that seeds keep what they drew before.
  constexpr std::uint64_t kOfCopy = 18;
  drawn.has_one_copy = loop == Loop::kResilient && Dice(seed ^ kOfCopy << 32U).one_in(2);
  if (drawn.is_elastic()) {  // What depends on the number of ranks is left out.
    drawn.steps *= kStepsOfElastic;
    drawn.has_dropout = false;
    drawn.has_sync_batch_norm = false;
    drawn.is_ragged = false;
    drawn.groups = {};
    drawn.groups_every = 0;
  }
  if (loop == Loop::kPlain) {
    drawn.has_schedule = false;  // A snapshot does not hold it.
  }
  if (loop == Loop::kServer) {  // Servers have parameters alone, and trainers no group.
    drawn.has_schedule = false;
    drawn.has_dropout = false;
    drawn.has_batch_norm = false;
    drawn.has_sync_batch_norm = false;
    drawn.is_ragged = false;
    drawn.groups = {};
    drawn.groups_every = 0;
    drawn.evaluate_every = 0;
  }
  return drawn;
}

std::string DrawnTraining::text() const {
  std::string text =
      concat(is_elastic() ? "any" : concat(world_size), " ranks, ", steps, " steps, width ", width,
             ", ", kOptimizerNames.at(static_cast<std::size_t>(optimizer)));
  const auto add = [&](bool has_it, std::string_view what) {
    if (has_it) text += concat(", ", what);
  };
  add(has_schedule, "schedule");
  add(has_dropout, "dropout");
  add(has_batch_norm, has_sync_batch_norm ? "SyncBatchNorm" : "BatchNorm");
  add(has_large_layer, "large layer");
  add(has_one_copy, "one copy per machine");
  add(is_ragged, "ragged batches");
  add(accumulation_steps > 1, concat(accumulation_steps, " passes a step"));
  add(!groups.empty(), concat(groups.size(), " groups", group_backend.empty() ? "" : " over ",
                              group_backend, " used every ", groups_every, " steps"));
  add(evaluate_every > 0, concat("evaluated every ", evaluate_every));
  add(true, concat("in memory every ", memory_every));
  add(save_interval > 0, concat("saved every ", save_interval));
  add(check_replicas_every > 0, concat("compared every ", check_replicas_every));
  return text;
}

}  // namespace lockstep::testing
