// Trains by parameter servers: the first ranks keep the parameters, the others train.
//
//   lockstep run --standalone --nproc-per-node=3 --max-restarts=10 parameter_server
//
// Of two models: `digits` is dense, `ratings` has embeddings, of which a trainer sees the rows that
// it asks for. With --servers=0 the same is trained with DistributedDataParallel. The guide is
// docs/guides/parameter-server.md.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>

#include <CLI/CLI.hpp>
#include <lockstep/lockstep.h>
#include <lockstep/parameter_server.h>
#include <torch/torch.h>

#include "examples/command_line.h"
#include "examples/data/digits_dataset.h"

namespace {

namespace ps = lockstep::parameter_server;

struct Arguments {
  std::string model = "digits";
  ps::TrainingOptions servers = {};
  std::int64_t steps = 1000;
  std::string data = "examples/data/digits.csv";
};

// Gives rows of a table: those of the servers, or of an embedding in this process.
using LookUp = std::function<at::Tensor(const std::string& table, const at::Tensor& ids)>;

// What is trained: the same by servers and by DistributedDataParallel.
class Problem : public torch::nn::Module {
 public:
  // The loss of some samples.
  virtual at::Tensor forward(const at::Tensor& samples, const LookUp& look_up) = 0;
  virtual std::string test(const LookUp& look_up) = 0;

  std::int64_t samples = 0;
  std::int64_t batch_size = 0;
  lockstep::rpc::MakeOptimizer optimizer;
  std::vector<ps::Table> tables;
};

class Digits : public Problem {
 public:
  explicit Digits(const std::string& path) : split_(examples::DigitsDataset::read(path).split()) {
    register_module("net", net_);
    samples = split_.train.labels().numel();
    batch_size = 64;
    optimizer = [](std::vector<at::Tensor> parameters) {
      return std::make_unique<torch::optim::SGD>(std::move(parameters), /*lr=*/0.05);
    };
  }

  at::Tensor forward(const at::Tensor& chosen, const LookUp& /*look_up*/) override {
    const auto outputs = net_->forward(split_.train.images().index_select(0, chosen));
    return torch::cross_entropy_loss(outputs, split_.train.labels().index_select(0, chosen));
  }

  std::string test(const LookUp& /*look_up*/) override {
    const auto is_right = net_->forward(split_.test.images()).argmax(1).eq(split_.test.labels());
    std::ostringstream text;
    text << "test accuracy " << std::fixed << std::setprecision(2)
         << 100 * is_right.to(torch::kDouble).mean().item<double>() << " %";
    return text.str();
  }

 private:
  examples::DigitsSplit split_;
  torch::nn::Sequential net_{torch::nn::Flatten(), torch::nn::Linear(64, 128), torch::nn::ReLU(),
                             torch::nn::Linear(128, 10)};
};

// Users rate items by what both are like; most pairs are never seen.
class Ratings : public Problem {
 public:
  Ratings() {
    register_module("net", net_);
    constexpr std::int64_t kUsers = 600;
    constexpr std::int64_t kItems = 400;
    constexpr std::int64_t kTraits = 4;
    constexpr std::int64_t kPairs = 40000;
    const auto random = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{1});
    const auto of_users = torch::randn({kUsers, kTraits}, random);
    const auto of_items = torch::randn({kItems, kTraits}, random);
    users_ = torch::randint(kUsers, {kPairs}, random, torch::kLong);
    items_ = torch::randint(kItems, {kPairs}, random, torch::kLong);
    ratings_ = (of_users.index_select(0, users_) * of_items.index_select(0, items_)).sum(1);
    samples = kPairs * 9 / 10;  // the rest is the test
    batch_size = 256;
    optimizer = [](std::vector<at::Tensor> parameters) {
      return std::make_unique<torch::optim::Adagrad>(std::move(parameters), /*lr=*/0.1);
    };
    tables = {
        {.name = "users", .rows = kUsers, .columns = 8, .standard_deviation = 0.5, .seed = 1},
        {.name = "items", .rows = kItems, .columns = 8, .standard_deviation = 0.5, .seed = 2}};
  }

  at::Tensor forward(const at::Tensor& chosen, const LookUp& look_up) override {
    const auto of_pairs = look_up("users", users_.index_select(0, chosen)) *
                          look_up("items", items_.index_select(0, chosen));
    return torch::mse_loss(net_->forward(of_pairs).squeeze(1), ratings_.index_select(0, chosen));
  }

  std::string test(const LookUp& look_up) override {
    const auto rest = torch::arange(samples, users_.numel());
    std::ostringstream text;
    text << "test error " << std::fixed << std::setprecision(3)
         << forward(rest, look_up).item<double>() << " of a variance of "
         << ratings_.var().item<double>();
    return text.str();
  }

 private:
  torch::nn::Linear net_{8, 1};
  at::Tensor users_, items_, ratings_;
};

// Of all bits and their places.
std::int64_t checksum(const torch::nn::Module& net) {
  const torch::NoGradGuard no_grad;
  const auto bits = torch::nn::utils::parameters_to_vector(net.parameters()).view(torch::kInt);
  return (bits.to(torch::kLong) * torch::arange(1, bits.numel() + 1)).sum().item<std::int64_t>();
}

void print_result(Problem& problem, const LookUp& look_up) {
  const torch::NoGradGuard no_grad;
  std::cout << problem.test(look_up) << ", checksum of the parameters " << checksum(problem)
            << std::endl;
}

void print_step(std::int64_t step, std::int64_t steps, const at::Tensor& loss) {
  if ((step + 1) % std::max<std::int64_t>(1, steps / 10) != 0) return;
  std::cout << "step " << step + 1 << "/" << steps << "  loss " << std::fixed
            << std::setprecision(4) << loss.item<double>() << std::endl;
}

lockstep::GlobalBatches batches_of(const Problem& problem) {
  return lockstep::GlobalBatches(
      {.dataset_size = problem.samples, .batch_size = problem.batch_size, .drop_last = true});
}

void train_by_servers(Problem& problem, const Arguments& arguments) {
  const auto batches = batches_of(problem);
  ps::Training training({.parameters = problem.parameters(),
                         .tables = problem.tables,
                         .optimizer = problem.optimizer,
                         .table_optimizer = problem.optimizer},
                        arguments.servers);
  const auto look_up_of = [](ps::ParameterClient& client) {
    return [&client](const std::string& table, const at::Tensor& ids) {
      return client.look_up(table, ids);
    };
  };
  // The outer function is called anew for each group of trainers; servers call neither.
  const auto make_step = [&](ps::ParameterClient& client) {
    if (client.trainer() == 0) {
      std::cout << "trainers: " << client.trainers() << ", from step " << training.done() << " on"
                << std::endl;
    }
    return [&](std::int64_t step) {
      const auto part = torch::tensor(
          batches.indices(step, lockstep::BatchPart{client.trainer(), client.trainers()}));
      problem.zero_grad();
      const auto loss = problem.forward(part, look_up_of(client));
      // Servers take the mean over trainers, whose parts may differ in size.
      const double share = static_cast<double>(part.numel()) / problem.batch_size;
      (loss * share * client.trainers()).backward();
      if (client.trainer() == 0) print_step(step, arguments.steps, loss);
    };
  };
  training.run(arguments.steps, make_step, [&](ps::ParameterClient& client) {
    if (client.trainer() == 0) print_result(problem, look_up_of(client));
  });
}

void train_by_all(Problem& problem, const Arguments& arguments) {
  std::map<std::string, torch::nn::Embedding> embeddings;
  for (const ps::Table& table : problem.tables) {
    torch::nn::Embedding embedding(
        torch::nn::EmbeddingOptions(table.rows, table.columns).sparse(true));
    embedding->weight.set_data(ps::initial_rows(table));
    embeddings.insert_or_assign(table.name, problem.register_module(table.name, embedding));
  }
  const LookUp look_up = [&](const std::string& table, const at::Tensor& ids) {
    return embeddings.at(table)->forward(ids);
  };
  const auto group = lockstep::init_process_group(arguments.servers.init);
  lockstep::DistributedDataParallel<Problem> model(
      std::shared_ptr<Problem>(&problem, [](Problem*) {}));
  const auto optimizer = problem.optimizer(problem.parameters());
  const auto batches = batches_of(problem);
  for (std::int64_t step = 0; step < arguments.steps; ++step) {
    const auto part = torch::tensor(batches.indices(step, group));
    optimizer->zero_grad();
    const auto loss = model.forward(part, look_up);
    model.backward(loss, {.weight = static_cast<double>(part.numel())});
    optimizer->step();
    if (group.rank() == 0) print_step(step, arguments.steps, loss);
  }
  if (group.rank() == 0) print_result(problem, look_up);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    Arguments arguments;
    CLI::App app(
        "Trains by parameter servers: the first ranks keep the parameters, the others train:\n"
        "  lockstep run --standalone --nproc-per-node=3 --max-restarts=10 parameter_server");
    app.option_defaults()->always_capture_default();
    app.add_option("--model", arguments.model,
                   "what is trained: digits, or ratings, which has embeddings")
        ->check(CLI::IsMember({"digits", "ratings"}));
    app.add_option("--servers", arguments.servers.servers,
                   "number of servers; 0: all ranks train with DistributedDataParallel")
        ->check(integer_between(0, kMostProcesses));
    app.add_option("--staleness", arguments.servers.staleness,
                   "train asynchronously: a trainer may be this many steps ahead of the slowest; "
                   "default: synchronously, one update per step of all trainers")
        ->check(integer_between(0, kMostOfAnything));
    app.add_option("--directory", arguments.servers.directory,
                   "folder of the servers' snapshots, from which a restarted job resumes");
    app.add_option("--save-interval", arguments.servers.save_interval, "updates between snapshots")
        ->check(integer_between(1, kMostOfAnything));
    app.add_option("--steps", arguments.steps, "steps of each trainer")
        ->check(integer_between(1, kMostOfAnything));
    app.add_option("--data", arguments.data, "the digits: 64 pixels and a label a line");
    if (!parse_command_line(app, argc, argv)) return 0;
    arguments.servers.init.backend = torch::cuda::is_available() ? "gloo" : "";
    torch::manual_seed(0);
    std::shared_ptr<Problem> problem;
    if (arguments.model == "digits") {
      problem = std::make_shared<Digits>(arguments.data);
    } else {
      problem = std::make_shared<Ratings>();
    }
    if (arguments.servers.servers == 0) {
      train_by_all(*problem, arguments);
    } else {
      train_by_servers(*problem, arguments);
    }
    return 0;
  });
}
