#include "tests/fuzz/differential/shrink.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::differential {
namespace {

std::string joined(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (const std::size_t number : numbers) text += concat(text.empty() ? "" : ",", number);
  return text;
}

/// How a job ended.
struct Trial {
  bool passed = false;
  std::optional<std::uint64_t> reached;  ///< the last seed or cut that began
};

Trial run_trial(const std::string& job, const std::string& progress) {
  std::filesystem::remove(progress);
  const std::string command = concat(job, " --progress=", progress, " >", progress, ".log 2>&1");
  Trial trial;
  trial.passed = std::system(command.c_str()) == 0;
  std::uint64_t number = 0;
  if (std::ifstream(progress) >> number) trial.reached = number;
  return trial;
}

}  // namespace

std::vector<std::size_t> shrink(const std::string& lockstep, const std::string& program,
                                std::uint64_t seed, int ranks) {
  const std::string progress =
      concat(std::filesystem::temp_directory_path().string(), "/differential.", seed, ".", ranks);
  const std::string job = concat(lockstep, " run --standalone --nproc-per-node=", ranks, " ",
                                 program, " --seed=", seed);
  const Trial whole = run_trial(job, progress);
  if (whole.passed) {
    throw UsageError(concat("differential: --shrink: seed ", seed, " of ", ranks,
                            " ranks passes; give a seed that fails"));
  }
  if (!whole.reached) {
    throw UsageError(concat("differential: --shrink='", lockstep, "': the job did not start (",
                            progress, ".log has its output); give the path of lockstep"));
  }
  std::vector<std::size_t> cuts;
  while (true) {
    const Trial probe =
        run_trial(concat(job, " --probe", cuts.empty() ? "" : " --cuts=" + joined(cuts)), progress);
    if (probe.passed || !probe.reached) break;
    cuts.push_back(*probe.reached);
    std::cerr << "--cuts=" << joined(cuts) << std::endl;
  }
  std::filesystem::remove(progress);
  std::cout << "--seed=" << seed << (cuts.empty() ? "" : " --cuts=") << joined(cuts) << "\n";
  return cuts;
}

}  // namespace lockstep::differential
