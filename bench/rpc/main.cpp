// Times calls to another worker and back, for run.py: on rank 0 of two. Prints one line of JSON
// with the microseconds of each call, by the bytes of the tensor that goes and comes back.
//   rpc_calls SIZE:CALLS...
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/program/run_main.h"
#include "lockstep/rpc/rpc.h"

namespace lockstep::bench::rpc_calls {
namespace {

namespace rpc = lockstep::rpc;

void call_once(const at::Tensor& tensor) {
  // As a call without arguments has none to send back.
  if (tensor.numel() == 0) {
    rpc::call<void>("worker1", "nothing");
  } else {
    rpc::call<at::Tensor>("worker1", "echo", tensor);
  }
}

std::vector<double> time_calls(std::int64_t size_bytes, int calls) {
  const at::Tensor tensor = at::empty({size_bytes}, at::TensorOptions().dtype(at::kByte)).fill_(1);
  for (int i = 0; i < 3; ++i) call_once(tensor);
  std::vector<double> times_us;
  for (int i = 0; i < calls; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call_once(tensor);
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    times_us.push_back(taken.count());
  }
  return times_us;
}

int run(const std::vector<std::string>& plans) {
  rpc::register_function("nothing", [] {});
  rpc::register_function("echo", [](const at::Tensor& tensor) { return tensor; });
  const auto group = lockstep::init_process_group();
  const auto session = rpc::init("worker" + std::to_string(group.rank()));
  if (group.rank() == 0) {
    nlohmann::json times;
    for (const std::string& plan : plans) {
      const auto colon = plan.find(':');
      const auto size = lockstep::parse_number<std::int64_t>(plan.substr(0, colon));
      const auto calls = lockstep::parse_number<int>(plan.substr(colon + 1));
      if (!size || !calls) throw lockstep::UsageError("rpc_calls: give SIZE:CALLS, not " + plan);
      times[std::to_string(*size)] = time_calls(*size, *calls);
    }
    std::printf("%s\n", times.dump().c_str());
  }
  rpc::shutdown();
  return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] { return run({argv + 1, argv + argc}); });
}

}  // namespace lockstep::bench::rpc_calls
