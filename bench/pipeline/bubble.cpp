// The bubble of a pipeline against its formula: stages of known work, which each rank measures;
// what is left of a step is bubble, and what messages cost.
//
//   lockstep run --standalone --nproc-per-node=2 pipeline_bubble [--work=matmul] [--check]
//
// Work is sleeping, which any number of ranks can do on any machine, or multiplying matrices, which
// wants a processor a rank. --check fails where a bubble is off by more than 10 % of the formula.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/pipeline/pipeline.h"
#include "lockstep/program/run_main.h"

namespace lockstep::bench::pipeline_bubble {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double kMostOff = 0.10;
constexpr std::int64_t kMatrix = 512;

struct Arguments {
  std::string work = "sleep";
  /// Of a micro-batch through all chunks of a rank; backward is twice that.
  double forward_ms = 100;
  std::int64_t activations = 1 << 12;  ///< Of a micro-batch, float32.
  int rounds = 3;
  bool check = false;
};

// What this rank has worked since it was last set to 0.
Seconds worked{};

class WorkLoad {
 public:
  explicit WorkLoad(const Arguments& arguments) : sleeps_(arguments.work == "sleep") {
    if (!sleeps_ && arguments.work != "matmul") throw UsageError("--work: sleep or matmul");
    if (sleeps_) return;
    multiply();
    const auto start = Clock::now();
    for (int i = 0; i < 20; ++i) multiply();
    milliseconds_a_product_ = 1e3 / 20 * Seconds(Clock::now() - start).count();
  }

  void spend(double milliseconds) {
    const auto start = Clock::now();
    if (sleeps_) {
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
    } else {
      const auto products = std::lround(milliseconds / milliseconds_a_product_);
      for (long i = 0; i < products; ++i) multiply();
    }
    worked += Clock::now() - start;
  }

  // Products are counted alike on all ranks: a rank's own measure would make stages differ.
  void agree(const ProcessGroup& group) {
    at::Tensor cost = at::full({1}, milliseconds_a_product_, at::kDouble);
    group.broadcast(cost, 0);
    milliseconds_a_product_ = cost.item<double>();
  }

 private:
  void multiply() { at::mm_out(product_, matrix_, matrix_); }

  bool sleeps_;
  double milliseconds_a_product_ = 1;
  at::Tensor matrix_ = at::ones({kMatrix, kMatrix});
  at::Tensor product_ = at::empty({kMatrix, kMatrix});
};

WorkLoad* load = nullptr;

struct WorkFunction : torch::autograd::Function<WorkFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            double milliseconds) {
    context->saved_data["milliseconds"] = milliseconds;
    load->spend(milliseconds);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    load->spend(2 * context->saved_data["milliseconds"].toDouble());
    return {gradients[0], at::Tensor()};
  }
};

struct WorkLayer : torch::nn::Module {
  explicit WorkLayer(double its_milliseconds)
      : milliseconds(its_milliseconds), scale(register_parameter("scale", at::ones({1}))) {}
  at::Tensor forward(const at::Tensor& x) { return WorkFunction::apply(x * scale, milliseconds); }
  double milliseconds;
  at::Tensor scale;
};

double all_ranks(const ProcessGroup& group, double value, ReduceOp op) {
  at::Tensor all = at::full({1}, value, at::kDouble);
  group.all_reduce(all, {.op = op});
  return all.item<double>();
}

// The idle part of a step over all ranks; the median of the rounds.
double measure(const ProcessGroup& group, PipelineSchedule schedule, const PipelineShape& shape,
               const Arguments& arguments) {
  torch::nn::Sequential net;
  for (int i = 0; i < shape.stages(); ++i) {
    net->push_back(std::make_shared<WorkLayer>(arguments.forward_ms / shape.chunks_per_rank));
  }
  Pipeline pipeline(net, {.process_group = group,
                          .schedule = schedule,
                          .micro_batches = shape.micro_batches,
                          .chunks_per_rank = shape.chunks_per_rank});
  const at::Tensor batch = at::ones({shape.micro_batches, arguments.activations});
  const auto loss = [](const at::Tensor& outputs, const at::Tensor&) { return outputs.mean(); };
  std::vector<double> bubbles;
  for (int round = 0; round <= arguments.rounds; ++round) {
    pipeline.zero_grad();
    group.barrier();
    worked = {};
    const auto start = Clock::now();
    pipeline.step(batch, batch, loss);
    const double taken = all_ranks(group, Seconds(Clock::now() - start).count(), ReduceOp::kMax);
    const double busy = all_ranks(group, worked.count(), ReduceOp::kAvg);
    if (round > 0) bubbles.push_back(1 - busy / taken);  // The first warms up.
  }
  std::ranges::sort(bubbles);
  return bubbles[bubbles.size() / 2];
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Measures the bubble of pipelines against the formula.");
  app.add_option("--work", arguments.work, "sleep or matmul");
  app.add_option("--forward-ms", arguments.forward_ms, "of a micro-batch on a rank")
      ->check(CLI::Range(0.1, 1e4));
  app.add_option("--activations", arguments.activations, "numbers between stages, a micro-batch")
      ->check(CLI::Range(1, 1 << 28));
  app.add_option("--rounds", arguments.rounds, "steps of which the median counts")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--check", arguments.check, "fail where one is off by more than 10 %");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  at::set_num_threads(1);
  const ProcessGroup group = init_process_group();
  WorkLoad work(arguments);
  work.agree(group);
  load = &work;
  const int ranks = group.world_size();
  if (ranks == 1) throw UsageError("pipeline_bubble: one rank has no bubble; start 2 or more");
  bool is_off = false;
  if (group.rank() == 0) std::printf("%-18s ranks chunks micro-batches  formula measured\n", "");
  for (const auto schedule :
       {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved1F1B}) {
    for (const int times : {1, 2, 4}) {
      const PipelineShape shape{
          .ranks = ranks,
          .chunks_per_rank = schedule == PipelineSchedule::kInterleaved1F1B ? 2 : 1,
          .micro_batches = times * ranks};
      const double formula = bubble_fraction(schedule, shape);
      const double measured = measure(group, schedule, shape, arguments);
      is_off |= std::abs(measured - formula) > kMostOff * formula;
      if (group.rank() != 0) continue;
      std::printf("%-18s %5d %6d %13d  %6.2f %% %6.2f %%  %+.1f %%\n",
                  std::string(name_of(schedule)).c_str(), ranks, shape.chunks_per_rank,
                  shape.micro_batches, 100 * formula, 100 * measured,
                  100 * (measured / formula - 1));
      std::fflush(stdout);
    }
  }
  return arguments.check && is_off ? kExitFailure : 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] { return run(argc, argv); });
}

}  // namespace lockstep::bench::pipeline_bubble
