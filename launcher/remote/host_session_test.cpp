#include "launcher/remote/host_session.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>

#include "lockstep/base/internal/concat.h"

namespace lockstep {
namespace {

TEST(HostSession, SendsARequestThatIsLargerThanAPipeHolds) {
  const HostedRequest request{
      .arguments = {"run"}, .environment = {"LARGE=" + std::string(200'000, 'x')}, .marker = "m"};
  std::string out;
  HostSession session(
      {.name = "there"},
      {.command = {"sh", "-c", "read -r line; echo ${#line}"}, .lockstep = "none"}, request,
      [&](const std::string& lines) { out += lines; }, [](const std::string&) {});
  const Deadline deadline = Deadline::after(std::chrono::seconds(30));
  while (!session.end() && !deadline.passed()) {
    std::vector<pollfd> descriptors;
    session.await(descriptors, true, true);
    ::poll(descriptors.data(), descriptors.size(), 100);
    session.handle(descriptors, 0);
  }
  ASSERT_TRUE(session.end());
  EXPECT_NE(out.find(concat(encode(request).size())), std::string::npos) << out;
}

}  // namespace
}  // namespace lockstep
