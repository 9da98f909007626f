#include "tools/audit/audit_options.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(AuditOptions, TakesFlagsBeforeAndAfterTheFolder) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"data", "--json"}, std::vector<std::string>{"--json", "data"}}) {
    const AuditOptions options = parse_audit_options(arguments);
    EXPECT_EQ(options.folder, "data");
    EXPECT_TRUE(options.json);
    EXPECT_FALSE(options.help);
  }
  EXPECT_TRUE(parse_audit_options({"-h"}).help);
}

TEST(AuditOptions, SaysWhatIsWrong) {
  for (const auto& [arguments, message] :
       {std::pair<std::vector<std::string>, std::string>{{}, "of which folder?"},
        {{"a", "b"}, "b"},
        {{"a", "--tofu=1"}, "--tofu"}}) {
    try {
      parse_audit_options(arguments);
      ADD_FAILURE() << "accepted where " << message << " was to be named";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace lockstep
