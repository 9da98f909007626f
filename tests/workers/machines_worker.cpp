// A rank for the tests of several machines (tests/python/launcher/two_machines.py).
//   machines_worker check   sums tensors of several sizes; says "ok BACKEND" when all were right
//   machines_worker loop    says "running PID" and sums until an error ends it
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/program/run_main.h"

namespace machines_worker {
namespace {

using lockstep::concat;
using lockstep::ProcessGroup;

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Small integers, which float32 sums exactly in any order.
at::Tensor values_of(int rank, std::int64_t elements) {
  return at::arange(elements).remainder(97).add(rank).to(at::kFloat);
}

at::Tensor sum_of_values(int ranks, std::int64_t elements) {
  at::Tensor sum = at::zeros({elements});
  for (int rank = 0; rank < ranks; ++rank) sum += values_of(rank, elements);
  return sum;
}

void check_sums(const ProcessGroup& group) {
  const std::vector<std::int64_t> sizes{1, 1009, 300'007, 5'000'011};
  std::vector<at::Tensor> tensors;
  std::vector<lockstep::Work> works;
  for (const std::int64_t elements : sizes) {
    tensors.push_back(group.allocate_tensor(elements, at::kFloat));
    tensors.back().copy_(values_of(group.rank(), elements));
    works.push_back(group.all_reduce(tensors.back(), {.async_op = true}));
  }
  for (const lockstep::Work& work : works) work.wait();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (at::equal(tensors[i], sum_of_values(group.world_size(), sizes[i]))) continue;
    throw lockstep::Error(concat("wrong sum of ", sizes[i], " elements on rank ", group.rank()));
  }
}

// Values whose sum depends on the order in which they are added.
void check_same_bits(const ProcessGroup& group) {
  at::manual_seed(static_cast<std::uint64_t>(group.rank()));
  at::Tensor tensor = at::randn({1 << 18});
  group.all_reduce(tensor);
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < group.world_size(); ++rank) all.push_back(at::empty_like(tensor));
  group.all_gather(all, tensor);
  for (const at::Tensor& theirs : all) {
    if (!at::equal(theirs, tensor)) throw lockstep::Error("ranks hold different bits");
  }
}

int run(std::string_view action) {
  const ProcessGroup group = lockstep::init_process_group();
  check_sums(group);
  check_same_bits(group);
  if (action == "check") {
    say(concat("ok ", group.backend_name()));
    group.barrier();
    return 0;
  }
  say(concat("running ", group.rank(), " ", ::getpid()));
  for (;;) group.all_reduce(at::ones({1 << 20}));
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc > 1 ? argv[1] : "check"); });
}

}  // namespace machines_worker
