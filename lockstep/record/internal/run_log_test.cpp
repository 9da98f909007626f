#include "lockstep/record/internal/run_log.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/record/internal/machine_description.h"

namespace lockstep {
namespace {

TEST(RunLog, ALineForEachBeginningAndEnd) {
  const TemporaryDirectory folder(std::filesystem::temp_directory_path(), "run-log-");
  RunLog(folder.path()).begin({.step = 3, .ranks = 2, .versions = {{"libtorch", "2.13.0"}}});
  RunLog(folder.path()).end(7, "stopped: \"val_loss\" did not improve");
  std::ifstream file(folder.path() / "runs.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  const auto begin = nlohmann::json::parse(line);
  EXPECT_EQ(begin.at("event"), "begin");
  EXPECT_EQ(begin.at("step"), 3);
  EXPECT_EQ(begin.at("ranks"), 2);
  EXPECT_GT(begin.at("time"), 1.7e9);
  EXPECT_EQ(begin.at("versions").at("libtorch"), "2.13.0");
  EXPECT_FALSE(begin.at("versions").at("lockstep").get<std::string>().empty());
  EXPECT_GT(begin.at("machine").at("memory_bytes"), 1 << 20);
  ASSERT_TRUE(std::getline(file, line));
  const auto end = nlohmann::json::parse(line);
  EXPECT_EQ(end.at("step"), 7);
  EXPECT_EQ(end.at("how"), "stopped: \"val_loss\" did not improve");
}

TEST(MachineDescription, NamesFromWhatTheSystemTells) {
  EXPECT_EQ(processor_name("processor\t: 0\nmodel\t\t: 85\nmodel name\t: Xeon (R) @ 2 GHz\n"),
            "Xeon (R) @ 2 GHz");
  EXPECT_EQ(processor_name("processor\t: 0\nCPU part\t: 0xd0c\n"), "ARM, part 0xd0c");
  EXPECT_EQ(processor_name("model name\t:"), "");
  EXPECT_EQ(processor_name(""), "");
  EXPECT_EQ(device_name("Model: \t\t NVIDIA H100 PCIe\nIRQ: 5\n"), "NVIDIA H100 PCIe");
  EXPECT_EQ(device_name(""), "NVIDIA device");
  EXPECT_FALSE(describe_machine().host.empty());
}

}  // namespace
}  // namespace lockstep
