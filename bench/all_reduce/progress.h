#pragma once

#include <chrono>
#include <string>

namespace lockstep::bench {

/// One line on a terminal, once the work has taken two seconds, gone at its end. Nothing where
/// stderr is no terminal, nor on ranks other than 0.
class Progress {
 public:
  Progress(int rank, int steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// A step begins.
  void step(const std::string& what);

 private:
  int steps_;
  int columns_ = 0;  ///< 0: silent
  int done_ = 0;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace lockstep::bench
