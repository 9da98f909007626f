#include "lockstep/os/process/find_program.h"

#include <fstream>

#include <gtest/gtest.h>

#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

struct FindProgram : testing::Test {
  TemporaryDirectory directory{std::filesystem::temp_directory_path(), "lockstep_test_"};

  std::string add(const std::string& name, std::filesystem::perms permissions) {
    const auto path = directory.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "#!/bin/sh\n";
    std::filesystem::permissions(path, permissions);
    return path.string();
  }

  static std::string message_of(const std::string& name, const std::string& search_path,
                                int exit_code) {
    try {
      return "found " + find_program(name, search_path);
    } catch (const ProgramError& error) {
      EXPECT_EQ(error.exit_code(), exit_code) << error.what();
      return error.what();
    }
  }
};

TEST_F(FindProgram, SkipsWhatIsNotExecutableOnThePath) {
  const auto all = std::filesystem::perms::owner_all;
  add("a/tool", std::filesystem::perms::owner_read);
  const std::string wanted = add("b/tool", all);
  add("c/tool", all);
  const std::string root = directory.path().string();
  EXPECT_EQ(find_program("tool", "/nowhere:" + root + "/a:" + root + "/b:" + root + "/c"), wanted);
}

TEST_F(FindProgram, ANameWithASlashIsNotLookedUp) {
  const std::string path = add("bin/tool", std::filesystem::perms::owner_all);
  EXPECT_EQ(find_program(path, ""), path);
  EXPECT_NE(message_of("./tool", directory.path().string() + "/bin", 127).find("./tool"),
            std::string::npos);
}

TEST_F(FindProgram, SaysWhatIsWrong) {
  const std::string file = add("data", std::filesystem::perms::owner_read);
  EXPECT_NE(message_of(file, "", 126).find("chmod +x"), std::string::npos);
  EXPECT_NE(message_of(directory.path().string(), "", 126).find("is a directory"),
            std::string::npos);
  EXPECT_NE(
      message_of("no_such_tool", "/bin", 127).find("'no_such_tool' is in no directory of PATH"),
      std::string::npos);
  EXPECT_NE(message_of("", "/bin", 127).find("no such program"), std::string::npos);
}

TEST_F(FindProgram, SuggestsTheProgramOfThisDirectory) {
  add("tool", std::filesystem::perms::owner_all);
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  const std::string message = message_of("tool", "/bin", 127);
  std::filesystem::current_path(before);
  EXPECT_NE(message.find("did you mean ./tool?"), std::string::npos) << message;
}

TEST(ExecRefused, ExplainsTheErrno) {
  EXPECT_NE(std::string(exec_refused("/x", ENOEXEC).what()).find("#!/bin/sh"), std::string::npos);
  EXPECT_NE(std::string(exec_refused("/x", ENOENT).what()).find("interpreter"), std::string::npos);
  EXPECT_EQ(exec_refused("/x", EACCES).exit_code(), 126);
}

}  // namespace
}  // namespace lockstep
