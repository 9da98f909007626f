// The ranks of `lockstep bench`, which starts them with its own arguments.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include <ATen/Parallel.h>
#include <torch/headeronly/version.h>

#include "bench/all_reduce/control.h"
#include "bench/all_reduce/measure.h"
#include "bench/all_reduce/report.h"
#include "bench/all_reduce/result.h"
#include "bench/all_reduce/subject_call.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/os/files/atomic_file.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/program/run_main.h"
#include "lockstep/record/internal/machine_description.h"
#include "tools/bench/bench_options.h"

namespace lockstep::bench {
namespace {

// One rank a processor while there are enough.
Cpus pin_ranks(const std::vector<int>& cpus, int rank, int ranks) {
  if (cpus.empty()) return {};
  const auto cpu_of = [&](int of_rank) {
    return cpus[static_cast<std::size_t>(of_rank) % cpus.size()];
  };
  if (static_cast<std::size_t>(ranks) <= cpus.size()) pin_to_cpu(cpu_of(rank));
  return {.count = static_cast<int>(cpus.size()), .first = cpu_of(0), .second = cpu_of(1)};
}

// A tensor that each subject may own, and as much for what backends hold themselves.
void check_memory(const BenchOptions& options) {
  const double needed = static_cast<double>(options.sizes.back()) * options.nproc_per_node *
                        static_cast<double>(3 + options.backends.size());
  const auto available = static_cast<double>(available_memory_bytes());
  if (needed < 0.8 * available) return;
  throw UsageError(concat("bench: ", options.nproc_per_node, " ranks with tensors of ",
                          options.sizes.back(), " bytes need about ", needed / 1e9, " GB, and ",
                          available / 1e9, " GB of memory are free; give smaller --sizes"));
}

void write_json(const Report& report, const std::string& path) {
  const std::string text = report_json(report);
  if (path == "-") {
    std::fputs(text.c_str(), stdout);
    return;
  }
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

int run(const std::vector<std::string>& arguments) {
  const BenchOptions options = parse_bench_options(arguments).value();
  const auto start = std::chrono::steady_clock::now();
  const int rank = env::integer(env::kRank).value_or(0);
  const Cpus cpus = pin_ranks(allowed_cpus(), rank, options.nproc_per_node);
  at::set_num_threads(1);

  const Control control(init_process_group({.backend = "gloo"}));
  if (control.ranks() != options.nproc_per_node) {
    throw UsageError("lockstep-bench-rank is started by `lockstep bench`; run that instead");
  }
  if (rank == 0) check_memory(options);
  auto calls = make_backend_calls(control, options, options.sizes.back());
  for (auto& call : make_limit_calls(control, options.sizes.back())) {
    calls.push_back(std::move(call));
  }
  const Measurements measured = measure(control, options, cpus, calls);
  if (rank != 0) return 0;

  std::vector<Subject> subjects;
  for (const auto& call : calls) subjects.push_back(call->subject());
  const std::string processor = describe_machine().processor;
  Report report{.ranks = control.ranks(),
                .cpus = cpus.count,
                .fresh = options.fresh,
                .cpu_model = processor.empty() ? "processor without a name" : processor,
                .libtorch = TORCH_VERSION,
                .baseline = choose_baseline(options.backends)};
  report.rows = make_rows(subjects, measured.samples, report.baseline);
  report.round_trip_ns_min = measured.round_trip_ns_min;
  report.round_trip_ns_max = measured.round_trip_ns_max;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.json != "-") std::fputs(report_table(report).c_str(), stdout);
  if (!options.json.empty()) write_json(report, options.json);
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return lockstep::bench::run({argv + 1, argv + argc}); });
}
