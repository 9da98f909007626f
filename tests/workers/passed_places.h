#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep::testing {

/// Which failpoints a process passes, and in which phases of its program, so that faults can be
/// drawn at places that it really passes. Threads: one.
class PassedPlaces {
 public:
  /// The phase lasts until this is destroyed.
  class Phase {
   public:
    Phase(PassedPlaces& places, std::string name);
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;
    ~Phase();

   private:
    PassedPlaces& places_;
    const std::string name_;
    const std::vector<std::int64_t> before_;
  };

  /// A text for each failpoint of each phase until now, "NAME: file.sync 1-2 5-6", with the first
  /// and the last pass each time, of many times some; the phase named "run" is the whole process.
  std::vector<std::string> texts() const;

 private:
  void note(const std::string& phase, const std::vector<std::int64_t>& before);

  /// By phase and failpoint.
  std::map<std::string, std::map<std::string, std::vector<std::string>>> ranges_;
};

}  // namespace lockstep::testing
