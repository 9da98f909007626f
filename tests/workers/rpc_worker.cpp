// A worker that calls others, for tests that kill them or send them what no worker would.
//   rpc_worker call|poll|backward|shutdown|serve|meet|late
#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/program/run_main.h"
#include "lockstep/rpc/autograd_context.h"
#include "lockstep/rpc/rpc.h"

namespace rpc_worker {
namespace {

namespace rpc = lockstep::rpc;

void say(const std::string& word) {
  std::cout << word << std::endl;
}

void wait_for_line() {
  std::string line;
  std::getline(std::cin, line);
}

std::string name_of(int rank) {
  return "worker" + std::to_string(rank);
}

// Rank 1 never answers.
void call(int rank) {
  if (rank == 1) {
    say("running");
    wait_for_line();
    return;
  }
  const auto answer = rpc::call_async<void>("worker1", "wait for ever");
  say("running");
  answer.wait();
}

// As call, by asking whether the answer is there, which alone has to end the loop.
void poll(int rank) {
  if (rank == 1) {
    say("running");
    wait_for_line();
    return;
  }
  const auto answer = rpc::call_async<void>(rpc::Target("worker1", std::chrono::milliseconds(3000)),
                                            "wait for ever");
  say("running");
  while (!answer.done()) std::this_thread::yield();
  answer.wait();
}

// Gradients go from rank 0 through rank 1 to rank 2.
void backward(int rank) {
  if (rank != 0) {
    say("running");
    wait_for_line();
    return;
  }
  rpc::AutogradContext context;
  const auto inputs = torch::ones({2}).requires_grad_();
  const auto loss = rpc::call<at::Tensor>("worker1", "through the next", inputs).sum();
  say("running");
  wait_for_line();
  context.backward({loss});
}

void serve(int rank) {
  say("running");
  wait_for_line();
  if (rank == 0) say(rpc::call<std::string>("worker1", "name"));
  rpc::shutdown();
}

// Of two calls that rank 1 does not take, the second waits behind the first.
void late(int rank) {
  say("running");
  if (rank == 0) {
    wait_for_line();
    const rpc::Target target("worker1", std::chrono::milliseconds(50));
    std::vector<rpc::Future<at::Tensor>> answers;
    for (int i = 0; i < 2; ++i)
      answers.push_back(rpc::call_async<at::Tensor>(target, "twice", torch::zeros({2'000'000})));
    for (const auto& answer : answers) {
      try {
        answer.wait();
      } catch (const lockstep::TimeoutError&) {
        say("late");
      }
    }
    wait_for_line();
  }
  rpc::shutdown();
}

void run(const std::string& mode) {
  rpc::register_function("wait for ever", [] {
    return c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
  });
  rpc::register_function("twice", [](const at::Tensor& values) { return 2 * values; });
  rpc::register_function("name", [] { return rpc::this_worker().name; });
  rpc::register_function("through the next", [](const at::Tensor& values) {
    return rpc::call<at::Tensor>(rpc::this_worker().rank + 1, "twice", values);
  });
  const auto group = lockstep::init_process_group();
  if (mode == "meet") {
    say("running");
    if (group.rank() == 1) wait_for_line();
  }
  const auto session = rpc::init(name_of(group.rank()));
  if (mode == "call") call(group.rank());
  if (mode == "poll") poll(group.rank());
  if (mode == "backward") backward(group.rank());
  if (mode == "serve") serve(group.rank());
  if (mode == "late") late(group.rank());
  if (mode == "shutdown") {
    say("running");
    if (group.rank() == 1) wait_for_line();
    rpc::shutdown();
  }
}

}  // namespace

int run_worker(int /*argc*/, char** argv) {
  return lockstep::run_main([&] {
    run(argv[1]);
    return 0;
  });
}

}  // namespace rpc_worker
