// Every benchmark with LibTorch, in one program: each alone would compile LibTorch's templates
// again. The name by which the program is called says which benchmark it is.
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

namespace lockstep::bench {
namespace accelerator_cost {
int run_program(int argc, char** argv);
}
namespace cost_worker {
int run_program(int argc, char** argv);
}
namespace ddp_step {
int run_program(int argc, char** argv);
}
namespace model_worker {
int run_program(int argc, char** argv);
}
namespace optimizer_steps {
int run_program(int argc, char** argv);
}
namespace parameter_updates {
int run_program(int argc, char** argv);
}
namespace pipeline_bubble {
int run_program(int argc, char** argv);
}
namespace preempted_worker {
int run_program(int argc, char** argv);
}
namespace rpc_calls {
int run_program(int argc, char** argv);
}
namespace same_bits {
int run_program(int argc, char** argv);
}
namespace save_faults {
int run_program(int argc, char** argv);
}
namespace save_stalls {
int run_program(int argc, char** argv);
}
namespace small_steps {
int run_program(int argc, char** argv);
}
namespace step_worker {
int run_program(int argc, char** argv);
}
namespace trainer_cost {
int run_program(int argc, char** argv);
}
namespace training {
int run_program(int argc, char** argv);
}
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  namespace bench = lockstep::bench;
  const std::map<std::string, int (*)(int, char**)> programs = {
      {"accelerator_cost", bench::accelerator_cost::run_program},
      {"cost_worker", bench::cost_worker::run_program},
      {"ddp_step", bench::ddp_step::run_program},
      {"model_worker", bench::model_worker::run_program},
      {"optimizer_steps", bench::optimizer_steps::run_program},
      {"parameter_updates", bench::parameter_updates::run_program},
      {"pipeline_bubble", bench::pipeline_bubble::run_program},
      {"preempted_worker", bench::preempted_worker::run_program},
      {"rpc_calls", bench::rpc_calls::run_program},
      {"same_bits", bench::same_bits::run_program},
      {"save_faults", bench::save_faults::run_program},
      {"save_stalls", bench::save_stalls::run_program},
      {"small_steps", bench::small_steps::run_program},
      {"step_worker", bench::step_worker::run_program},
      {"trainer_cost", bench::trainer_cost::run_program},
      {"training", bench::training::run_program}};
  const std::string name = std::filesystem::path(argv[0]).filename();
  const auto program = programs.find(name);
  if (program != programs.end()) return program->second(argc, argv);
  std::fprintf(stderr, "bench_programs: there is no benchmark %s\n", name.c_str());
  return 2;
}
