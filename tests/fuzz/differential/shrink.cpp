#include "tests/fuzz/differential/shrink.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "lockstep/base/concat.h"

namespace lockstep::differential {
namespace {

std::string joined(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (const std::size_t number : numbers) text += concat(text.empty() ? "" : ",", number);
  return text;
}

}  // namespace

std::vector<std::size_t> shrink(const std::string& lockstep, const std::string& program,
                                std::uint64_t seed, int ranks) {
  const std::string progress =
      concat(std::filesystem::temp_directory_path().string(), "/differential.", seed, ".", ranks);
  std::vector<std::size_t> cuts;
  while (true) {
    const std::string command =
        concat(lockstep, " run --standalone --nproc-per-node=", ranks, " ", program,
               " --probe --seed=", seed, " --progress=", progress,
               cuts.empty() ? "" : " --cuts=" + joined(cuts), " >", progress, ".log 2>&1");
    if (std::system(command.c_str()) == 0) break;
    std::size_t number = 0;
    if (!(std::ifstream(progress) >> number)) break;
    cuts.push_back(number);
    std::cerr << "--cuts=" << joined(cuts) << std::endl;
  }
  std::filesystem::remove(progress);
  std::cout << "--seed=" << seed << " --cuts=" << joined(cuts) << "\n";
  return cuts;
}

}  // namespace lockstep::differential
