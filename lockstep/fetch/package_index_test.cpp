#include "lockstep/fetch/package_index.h"

#include <gtest/gtest.h>

#include "lockstep/fetch/download_error.h"

namespace lockstep {
namespace {

constexpr const char* kPage = "https://host/simple/name/";

TEST(PackageIndex, NamesThePageOfAPackage) {
  EXPECT_EQ(package_page_url("https://host/simple", "scikit-image"),
            "https://host/simple/scikit-image/");
  EXPECT_EQ(package_page_url("https://host/simple/", "My._Name"), "https://host/simple/my-name/");
  EXPECT_EQ(package_page_url("file:///srv/simple", "name"), "file:///srv/simple/name/index.html");
}

TEST(PackageIndex, FindsAFileInJson) {
  const std::string page = R"( {"meta": {"api-version": "1.0"}, "files": [
    {"filename": "name-1.tar.gz.asc", "url": "https://files.host/signature"},
    {"filename": "name-1.tar.gz", "url": "https://files.host/1"}, 7, {"filename": 1},
    {"filename": "name-2.tar.gz", "url": "../../2/name-2.tar.gz"}]})";
  EXPECT_EQ(package_file_url(page, kPage, "name-1.tar.gz"), "https://files.host/1");
  EXPECT_EQ(package_file_url(page, kPage, "name-2.tar.gz"), "https://host/2/name-2.tar.gz");
  EXPECT_THROW(package_file_url(page, kPage, "name-3.tar.gz"), DownloadError);
}

TEST(PackageIndex, FindsAFileInHtml) {
  const std::string page = R"(<html><a href='x-name-1.whl'>x</a>
    <a data-x="1" href="../../f/name-1.whl#sha256=00">name-1.whl</a>
    <a href="name%2B2.whl">name+2.whl</a> <a href=unquoted> <a href="never closed)";
  EXPECT_EQ(package_file_url(page, kPage, "name-1.whl"), "https://host/f/name-1.whl#sha256=00");
  EXPECT_EQ(package_file_url(page, kPage, "name+2.whl"), "https://host/simple/name/name%2B2.whl");
  EXPECT_THROW(package_file_url(page, kPage, "name-3.whl"), DownloadError);
}

TEST(PackageIndex, RefusesPagesThatAreNone) {
  for (const char* page : {"", "  ", "{", "{}", R"({"files": 3})", "[]", "<html>", "href="}) {
    EXPECT_THROW(package_file_url(page, kPage, "name-1.whl"), DownloadError) << page;
  }
}

TEST(PackageIndex, LetsNoServerNameFilesOfThisMachine) {
  const std::string page = R"(<a href="file:///etc/name-1.whl">)";
  EXPECT_THROW(package_file_url(page, kPage, "name-1.whl"), DownloadError);
  EXPECT_EQ(package_file_url(page, "file:///srv/name/index.html", "name-1.whl"),
            "file:///etc/name-1.whl");
}

}  // namespace
}  // namespace lockstep
