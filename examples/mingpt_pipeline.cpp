// Trains a small GPT that is divided into stages, on a grid of processes: the stages of a pipeline
// side by side, and replicas of it below each other, whose gradients are summed:
//
//   lockstep run --standalone --nproc-per-node=4 mingpt_pipeline --stages=2
//
// trains two replicas of two stages. --tensor-parallel gives each process a part of every weight in
// place of stages (docs/guides/tensor-parallel.md). --no-pipeline trains the same model on the
// same batches in one process: the losses are equal, but for rounding.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <CLI/CLI.hpp>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include "examples/command_line.h"
#include "examples/mingpt/char_dataset.h"
#include "examples/mingpt/text.h"
#include "examples/mingpt/vocabulary.h"
#include "lockstep/lockstep.h"
#include "lockstep/pipeline.h"
#include "models/gpt.h"

namespace {

struct Arguments {
  std::string text = LOCKSTEP_SOURCE_DIRECTORY "/examples/data/sonnets.txt";
  int stages = 2;
  std::string schedule = "1f1b";
  int chunks = 1;
  int micro_batches = 4;
  std::int64_t steps = 30;
  std::int64_t batch_size = 16;
  std::int64_t n_layer = 4;
  double lr = 1e-3;
  bool no_pipeline = false;
  bool tensor_parallel = false;
};

/// A process's place in the grid: its row is a pipeline, its column has the same stages.
struct Place {
  lockstep::ProcessGroup pipeline = {};
  lockstep::ProcessGroup replicate_group = {};
  int replica = 0;
  int replica_count = 1;
};

Place find_place(const lockstep::ProcessGroup& world, int stages) {
  if (world.world_size() % stages != 0) {
    throw lockstep::UsageError("--stages " + std::to_string(stages) + ": " +
                               std::to_string(world.world_size()) +
                               " processes do not divide into pipelines of so many");
  }
  Place place{.replica = world.rank() / stages, .replica_count = world.world_size() / stages};
  const auto group_of = [&](int first, int step, int count) {
    std::vector<int> ranks;
    for (int i = 0; i < count; ++i) ranks.push_back(first + i * step);
    return world.new_group(ranks);  // empty where this process is no member
  };
  for (int replica = 0; replica < place.replica_count; ++replica) {
    if (const auto row = group_of(replica * stages, 1, stages)) place.pipeline = row;
  }
  for (int stage = 0; stage < stages; ++stage) {
    if (const auto column = group_of(stage, stages, place.replica_count))
      place.replicate_group = column;
  }
  return place;
}

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

/// Pieces of the text; all processes draw the same, and each replica takes its part.
class Batches {
 public:
  Batches(const at::Tensor& tokens, std::int64_t block_size, std::int64_t batch_size)
      : dataset_(tokens, {.block_size = block_size}), batch_size_(batch_size) {}

  torch::data::Example<> next(int replica, int replica_count) {
    const auto pieces = static_cast<std::int64_t>(*dataset_.size());
    const at::Tensor drawn = at::randint(pieces, {batch_size_}, at::kLong);
    const at::Tensor own = drawn.tensor_split(replica_count)[static_cast<std::size_t>(replica)];
    std::vector<std::size_t> indices;
    for (std::int64_t i = 0; i < own.numel(); ++i) {
      indices.push_back(static_cast<std::size_t>(own[i].item<std::int64_t>()));
    }
    return dataset_.get_batch(indices);
  }

 private:
  mingpt::CharDataset dataset_;
  std::int64_t batch_size_;
};

int train(const Arguments& arguments) {
  const auto world = lockstep::init_process_group();
  const mingpt::Vocabulary vocabulary(mingpt::read_text({arguments.text}));
  const models::GptConfig config{.n_layer = arguments.n_layer,
                                 .n_embd = 64,
                                 .vocab_size = vocabulary.size(),
                                 .block_size = 64,
                                 .embd_pdrop = 0,  // each rank would draw its own
                                 .resid_pdrop = 0,
                                 .attn_pdrop = 0};
  torch::manual_seed(1);  // the same weights and batches everywhere
  models::Gpt gpt(config);
  gpt->to(world.device());
  Batches batches(vocabulary.encode(mingpt::read_text({arguments.text})), config.block_size,
                  arguments.batch_size);
  const auto report = [&](std::int64_t step, double loss) {
    if (world.rank() != 0) return;
    std::printf("step %lld  loss %.5f\n", static_cast<long long>(step), loss);
    std::fflush(stdout);
  };

  if (arguments.tensor_parallel) gpt->shard_over(world);
  if (arguments.no_pipeline || arguments.tensor_parallel) {
    torch::optim::AdamW optimizer(gpt->parameters(), arguments.lr);
    for (std::int64_t step = 1; step <= arguments.steps; ++step) {
      const auto batch = batches.next(0, 1);
      optimizer.zero_grad();
      const at::Tensor loss = loss_of(gpt->layers()->forward(batch.data.to(world.device())),
                                      batch.target.to(world.device()));
      loss.backward();
      optimizer.step();
      report(step, loss.item<double>());
    }
    return 0;
  }

  const Place place = find_place(world, arguments.stages);
  lockstep::Pipeline pipeline(gpt->layers(),
                              {.process_group = place.pipeline,
                               .replicate_group = place.replicate_group,
                               .schedule = lockstep::pipeline_schedule_of(arguments.schedule),
                               .micro_batches = arguments.micro_batches,
                               .chunks_per_rank = arguments.chunks});
  torch::optim::AdamW optimizer(pipeline.parameters(), arguments.lr);
  for (std::int64_t step = 1; step <= arguments.steps; ++step) {
    const auto batch = batches.next(place.replica, place.replica_count);
    pipeline.zero_grad();
    const double loss = pipeline.step(batch.data, batch.target, loss_of);
    optimizer.step();
    report(step, loss);
  }
  return 0;
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Trains a small GPT, divided into stages, on a grid of processes: pipelines of --stages\n"
      "processes, and as many replicas of them as there are processes for.");
  app.option_defaults()->always_capture_default();
  app.add_option("--text", arguments.text, "text file to train on");
  app.add_option("--stages", arguments.stages, "processes per pipeline")
      ->check(integer_between(1, kMostProcesses));
  app.add_option("--schedule", arguments.schedule, "gpipe, 1f1b or interleaved-1f1b");
  app.add_option("--chunks", arguments.chunks, "stages per process, with interleaved-1f1b")
      ->check(integer_between(1, kMostOfAnything));
  app.add_option("--micro-batches", arguments.micro_batches, "micro-batches per step of a replica")
      ->check(integer_between(1, kMostOfAnything));
  app.add_option("--steps", arguments.steps, "number of steps")
      ->check(integer_between(1, kMostOfAnything));
  app.add_option("--batch-size", arguments.batch_size, "sequences per step, over all replicas")
      ->check(integer_between(1, kMostOfAnything));
  app.add_option("--n-layer", arguments.n_layer, "blocks of the GPT")
      ->check(integer_between(1, kMostOfAnything));
  app.add_option("--lr", arguments.lr, "learning rate of AdamW")->check(require_positive);
  app.add_flag("--tensor-parallel", arguments.tensor_parallel,
               "shard every weight over all processes, instead of stages");
  app.add_flag("--no-pipeline", arguments.no_pipeline, "train the same model in one process");
  return parse_command_line(app, argc, argv) ? train(arguments) : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
