#pragma once

#include <cstdlib>
#include <map>
#include <string>

#include "lockstep/base/internal/env.h"

namespace lockstep {

/// Sets the given variables and unsets all others that Lockstep reads, except PATH, while it lives.
class EnvironmentForTest {
 public:
  using Values = std::map<std::string, std::string>;

  explicit EnvironmentForTest(const Values& values) {
    clear();
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~EnvironmentForTest() { clear(); }
  EnvironmentForTest(const EnvironmentForTest&) = delete;
  EnvironmentForTest& operator=(const EnvironmentForTest&) = delete;

 private:
  static void clear() {
    for (const env::Variable* variable : env::all()) {
      if (variable != &env::kPath) ::unsetenv(variable->name);
    }
  }
};

/// What the launchers set for rank 1 of 4, two machines with two ranks each under srun.
inline const EnvironmentForTest::Values kUnderOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                                                         {"OMPI_COMM_WORLD_SIZE", "4"},
                                                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                                         {"PMIX_NAMESPACE", "508821505"}};
inline const EnvironmentForTest::Values kUnderMpich = {{"PMI_RANK", "1"},
                                                       {"PMI_SIZE", "4"},
                                                       {"MPI_LOCALRANKID", "1"},
                                                       {"MPI_LOCALNRANKS", "4"},
                                                       {"PMI_FD", "6"}};
inline const EnvironmentForTest::Values kUnderSrun = {{"SLURM_PROCID", "3"},
                                                      {"SLURM_LOCALID", "1"},
                                                      {"SLURM_NODEID", "1"},
                                                      {"SLURM_STEP_NUM_TASKS", "4"},
                                                      {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                                                      {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                                                      {"SLURM_JOB_ID", "4711"},
                                                      {"SLURM_STEP_ID", "2"}};

inline EnvironmentForTest::Values operator+(EnvironmentForTest::Values some,
                                            const EnvironmentForTest::Values& more) {
  for (const auto& [name, value] : more) some[name] = value;
  return some;
}

}  // namespace lockstep
