// Every program with LibTorch that tests start, in one program: it takes a third of the time to
// build. The name by which the program is called says which it is.
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

namespace lockstep::accelerator_worker {
int run_worker(int argc, char** argv);
}
namespace lockstep::testing::features_worker {
int run_worker(int argc, char** argv);
}
namespace lockstep::fully_shard_worker {
int run_worker(int argc, char** argv);
}
namespace lockstep::gpt2_worker {
int run_worker(int argc, char** argv);
}
namespace lockstep::gpt_worker {
int run_worker(int argc, char** argv);
}
namespace machines_worker {
int run_worker(int argc, char** argv);
}
namespace lockstep::testing::one_copy_kill_tests {
int run_worker(int argc, char** argv);
}
namespace lockstep::optim_worker {
int run_worker(int argc, char** argv);
}
namespace lockstep::optimizers_worker {
int run_worker(int argc, char** argv);
}
namespace parity_worker {
int run_worker(int argc, char** argv);
}
namespace pipeline_worker {
int run_worker(int argc, char** argv);
}
namespace lockstep::preempt_worker {
int run_worker(int argc, char** argv);
}
namespace record_worker {
int run_worker(int argc, char** argv);
}
namespace lockstep::testing::recovery_worker {
int run_worker(int argc, char** argv);
}
namespace lockstep::resilient_worker {
int run_worker(int argc, char** argv);
}
namespace resume_worker {
int run_worker(int argc, char** argv);
}
namespace rpc_worker {
int run_worker(int argc, char** argv);
}
namespace sampler_indices {
int run_worker(int argc, char** argv);
}
namespace seen_worker {
int run_worker(int argc, char** argv);
}
namespace lockstep::snapshot_worker {
int run_worker(int argc, char** argv);
}

int main(int argc, char** argv) {
  const std::map<std::string, int (*)(int, char**)> workers = {
      {"accelerator_worker", lockstep::accelerator_worker::run_worker},
      {"features_worker", lockstep::testing::features_worker::run_worker},
      {"fully_shard_worker", lockstep::fully_shard_worker::run_worker},
      {"gpt2_worker", lockstep::gpt2_worker::run_worker},
      {"gpt_worker", lockstep::gpt_worker::run_worker},
      {"machines_worker", machines_worker::run_worker},
      {"one_copy_kill_tests", lockstep::testing::one_copy_kill_tests::run_worker},
      {"optim_worker", lockstep::optim_worker::run_worker},
      {"optimizers_worker", lockstep::optimizers_worker::run_worker},
      {"parity_worker", parity_worker::run_worker},
      {"pipeline_worker", pipeline_worker::run_worker},
      {"preempt_worker", lockstep::preempt_worker::run_worker},
      {"record_worker", record_worker::run_worker},
      {"recovery_worker", lockstep::testing::recovery_worker::run_worker},
      {"resilient_worker", lockstep::resilient_worker::run_worker},
      {"resume_worker", resume_worker::run_worker},
      {"rpc_worker", rpc_worker::run_worker},
      {"sampler_indices", sampler_indices::run_worker},
      {"seen_worker", seen_worker::run_worker},
      {"snapshot_worker", lockstep::snapshot_worker::run_worker}};
  const std::string name = std::filesystem::path(argv[0]).filename();
  const auto worker = workers.find(name);
  if (worker != workers.end()) return worker->second(argc, argv);
  std::fprintf(stderr, "workers: there is no worker %s\n", name.c_str());
  return 2;
}
