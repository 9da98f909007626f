#include "tools/new/new_project.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(NewProjectTest, PutsItsNameAndPlacesIntoTheFiles) {
  const auto files = project_files(
      {.name = "my-net", .version = "0.1", .prefix_path = "/opt/lockstep;/opt/torch"});
  const auto text_of = [&](const std::string& name) {
    const auto found = std::ranges::find(files, name, &ProjectFile::name);
    return found == files.end() ? std::string() : found->text;
  };
  EXPECT_NE(text_of("CMakeLists.txt").find("add_executable(my-net main.cpp"), std::string::npos);
  EXPECT_NE(text_of("CMakeLists.txt").find("find_package(lockstep 0.1 REQUIRED)"),
            std::string::npos);
  EXPECT_NE(text_of("CMakePresets.json").find("\"/opt/lockstep;/opt/torch\""), std::string::npos);
  EXPECT_EQ(text_of(".gitignore"), "/build/\n/runs/\n");
  for (const ProjectFile& file : files) {
    EXPECT_EQ(file.text.find("@P"), std::string::npos) << file.name;
    EXPECT_EQ(file.text.find("@V"), std::string::npos) << file.name;
    EXPECT_EQ(file.text.back(), '\n') << file.name;
  }
}

TEST(NewProjectTest, NamesThatCannotBeProgramsAreRefused) {
  for (const char* name : {"", "1net", "a b", "a/b", "-a", "test", "a;b", "ä"}) {
    EXPECT_THROW(project_files({.name = name, .version = "0.1", .prefix_path = ""}), UsageError)
        << name;
  }
}

}  // namespace
}  // namespace lockstep
