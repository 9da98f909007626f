#include "lockstep/fetch/url.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(Url, TakesTheKindsThatCanBeFetched) {
  EXPECT_EQ(url_scheme("https://pypi.org/simple"), "https");
  EXPECT_EQ(url_scheme("http://localhost:8080/x"), "http");
  EXPECT_EQ(url_scheme("file:///srv/mirror"), "file");
  for (const char* bad : {"", "pypi.org", "ftp://host/file", "gopher://host", "scp://host/x"}) {
    EXPECT_THROW(url_scheme(bad), UsageError) << bad;
  }
}

TEST(Url, JoinsAsPagesMeanIt) {
  const std::string page = "https://host/simple/name/";
  EXPECT_EQ(join_url(page, "https://files.host/a.whl"), "https://files.host/a.whl");
  EXPECT_EQ(join_url(page, "../../packages/a.whl#sha256=1"),
            "https://host/packages/a.whl#sha256=1");
  EXPECT_EQ(join_url(page, "/a.whl"), "https://host/a.whl");
  EXPECT_EQ(join_url("file:///srv/name/index.html", "a.whl"), "file:///srv/name/a.whl");
}

TEST(Url, IsShownWithoutSecrets) {
  EXPECT_EQ(shown_url("https://user:secret@host/a@b?token=secret#x"), "https://host/a@b");
  EXPECT_EQ(shown_url("https://host/a@b"), "https://host/a@b");
  EXPECT_EQ(shown_url("https://user:se@cret@host/a"), "https://host/a");
  EXPECT_EQ(shown_url("no url"), "no url");
  try {
    url_scheme("ftp://me:secret@host/");
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep
