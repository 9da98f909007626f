#pragma once

#include <functional>
#include <string>

namespace lockstep {

/// One option of a program: how its value is set and shown.
struct ProgramOption {
  /// As in files, where dots stand for sections: "ddp.bucket_cap_mb". The flag is
  /// --ddp.bucket-cap-mb, the variable of the environment <prefix>DDP__BUCKET_CAP_MB.
  std::string name;
  std::string help;
  /// Takes a value, or says what is wrong with it: "must be an integer".
  std::function<std::string(const std::string& text)> set;
  std::function<std::string()> get;
  enum class Kind { kText, kNumber, kFlag } kind = Kind::kText;
  /// The heading in --help.
  std::string group = "Options";
};

}  // namespace lockstep
