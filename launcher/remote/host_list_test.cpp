#include "launcher/remote/host_list.h"

#include <fstream>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

using Hosts = std::vector<RemoteHost>;

template <class Parse>
std::string refusal_of(const Parse& parse) {
  try {
    parse();
    return "accepted";
  } catch (const UsageError& error) {
    return error.what();
  }
}

bool names(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return true;
}

TEST(HostList, IsHostsWithCommas) {
  EXPECT_EQ(parse_host_list("a"), (Hosts{{.name = "a"}}));
  EXPECT_EQ(parse_host_list("a,b:2,me@c:3"),
            (Hosts{{.name = "a"}, {.name = "b", .slots = 2}, {.name = "me@c", .slots = 3}}));
  EXPECT_EQ(parse_host_list("::1,[fe80::2]:4,[::3],me@[::4]:2"),
            (Hosts{{.name = "::1"},
                   {.name = "fe80::2", .slots = 4},
                   {.name = "::3"},
                   {.name = "me@::4", .slots = 2}}));
}

TEST(HostList, TheAddressIsWithoutTheUser) {
  EXPECT_EQ(RemoteHost{.name = "me@node"}.address(), "node");
  EXPECT_EQ(RemoteHost{.name = "node"}.address(), "node");
}

TEST(HostList, AFileIsAHostALine) {
  const std::string content =
      "# the first rack\n"
      "a slots=2\n"
      "\n"
      "  b:3   # is slow\n"
      "c slots=4 max_slots=8\n"
      "d\n";
  EXPECT_EQ(parse_host_file(content, "hosts"), (Hosts{{.name = "a", .slots = 2},
                                                      {.name = "b", .slots = 3},
                                                      {.name = "c", .slots = 4},
                                                      {.name = "d"}}));
}

TEST(HostList, WhatIsNoHostIsRefused) {
  for (const char* const text : {"", ",", "a,,b", "a:", "a:0", "a:x", "a:2x", "-oProxyCommand=x",
                                 "me@-a", "me@", "a b", "[::1", "[::1]2", "a:99999"}) {
    EXPECT_TRUE(names(refusal_of([&] { parse_host_list(text); }), "--hosts=")) << text;
  }
  EXPECT_TRUE(names(refusal_of([] { parse_host_list("a,b,a:2"); }), "a is listed twice"));
}

TEST(HostList, ErrorsOfAFileNameTheLine) {
  EXPECT_TRUE(names(refusal_of([] { parse_host_file("a\nb slots=x\n", "f"); }), "f line 2: 'x'"));
  EXPECT_TRUE(names(refusal_of([] { parse_host_file("a\n\nb cpus=2\n", "f"); }), "f line 3"));
  EXPECT_TRUE(names(refusal_of([] { parse_host_file("# none\n", "f"); }), "f: no machine given"));
}

TEST(HostList, IsAFileWhereThereIsOne) {
  const TemporaryDirectory directory("/tmp", "lockstep-test-");
  const std::string path = (directory.path() / "hosts").string();
  EXPECT_TRUE(names(refusal_of([&] { read_hosts(path); }), "there is no such file"));
  std::ofstream(path) << "a slots=2\n";
  EXPECT_EQ(read_hosts(path), (Hosts{{.name = "a", .slots = 2}}));
  EXPECT_EQ(read_hosts("a,b").size(), 2U);
}

}  // namespace
}  // namespace lockstep
