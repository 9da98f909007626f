#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

// Commands of `lockstep` that need no LibTorch: the code that they share with the launcher is in
// the program once. Each gets what follows its name; returns the exit code. Errors: Error.

int audit_command(const std::vector<std::string>& arguments);
int bench_command(const std::vector<std::string>& arguments);
int doctor_command(const std::vector<std::string>& arguments);
int env_command(const std::vector<std::string>& arguments);
int estimate_command(const std::vector<std::string>& arguments);
int new_command(const std::vector<std::string>& arguments);
int report_command(const std::vector<std::string>& arguments);
int test_command(const std::vector<std::string>& arguments);
int trace_command(const std::vector<std::string>& arguments);

}  // namespace lockstep::inline internal
