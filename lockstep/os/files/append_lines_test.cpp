#include "lockstep/os/files/append_lines.h"

#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(AppendLines, DropsALineThatIsCutOff) {
  const TemporaryDirectory folder(std::filesystem::temp_directory_path(), "append-lines-");
  const auto path = folder.path() / "log";
  const auto append = [&](const std::string& text) {
    const UniqueFd file = open_to_append_lines(path);
    ASSERT_TRUE(file.valid());
    ASSERT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  append("on");
  append("one\n");
  append("tw");
  append("two\n");
  EXPECT_EQ(text_of(path), "one\ntwo\n");
  // Longer than what is read at once.
  append(std::string(9'000, 'x'));
  append("three\n");
  EXPECT_EQ(text_of(path), "one\ntwo\nthree\n");
  EXPECT_FALSE(open_to_append_lines(folder.path() / "none" / "log").valid());
}

}  // namespace
}  // namespace lockstep
