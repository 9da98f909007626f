#include "launcher/remote/hosted_request.h"

#include <csignal>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

HostedRequest request() {
  return {.arguments = {"run", "--nnodes=2", "--", "./train", "a b", "it's \"$HOME\"\n", ""},
          .directory = "/work/\xe4\xff dir/\xe6\xbc\xa2",
          .environment = {"LOCKSTEP_JOB_SECRET=abc", "EMPTY="},
          .marker = "0123",
          .silence = std::chrono::seconds(7),
          .patience = std::chrono::seconds(40)};
}

TEST(HostedRequest, IsOneLineThatIsReadBackWhateverTheTexts) {
  const std::string text = encode(request());
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(decode_hosted_request(text), request());
}

TEST(HostedRequest, AnythingElseIsNone) {
  const std::string text = encode(request());
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(decode_hosted_request(text.substr(0, size)));
  }
  for (
      const char* const other :
      {"[]", "{}", "beat", R"({"arguments":["run"],"directory":"/","environment":[]})",
       R"({"arguments":[1],"directory":"/","environment":[],"marker":"","silence_ms":1,"patience_ms":1})",
       R"({"arguments":[],"directory":"/","environment":[],"marker":"","silence_ms":1,"patience_ms":-1})",
       R"({"arguments":["a\u0000b"],"directory":"","environment":[],"marker":"","silence_ms":1,"patience_ms":1})"}) {
    EXPECT_FALSE(decode_hosted_request(other)) << other;
  }
}

TEST(HostedRequest, SeveralBeatsFitIntoTheSilence) {
  EXPECT_EQ(heartbeat_interval(kLongestSilence), std::chrono::seconds(5));
  EXPECT_EQ(heartbeat_interval(std::chrono::seconds(2)), std::chrono::milliseconds(500));
}

TEST(HostedRequest, SignalsAreLines) {
  EXPECT_EQ(signal_in(signal_line(SIGTERM)), SIGTERM);
  for (const char* const other :
       {"signal", "signal ", "signal 0", "signal x", "signal 99", "beat"}) {
    EXPECT_FALSE(signal_in(other)) << other;
  }
}

TEST(HostedRequest, MarksAreFoundBehindALineThatHasNoEnd) {
  const MarkedLine begun = read_marks(begun_mark("m"), "m");
  EXPECT_TRUE(begun.begun);
  EXPECT_EQ(begun.text, "");
  const MarkedLine ended = read_marks("half a line" + ended_mark("m", 255), "m");
  EXPECT_EQ(ended.text, "half a line");
  EXPECT_EQ(ended.ended, 255);
  EXPECT_FALSE(ended.begun);
}

TEST(HostedRequest, MarksOfAnotherAreText) {
  const MarkedLine line = read_marks(begun_mark("other"), "m");
  EXPECT_FALSE(line.begun);
  EXPECT_EQ(line.text, begun_mark("other"));
}

}  // namespace
}  // namespace lockstep
