#pragma once

namespace lockstep::python {

/// The process that made it: a forked one shares no memory with the ranks, and is none itself.
/// Threads: any.
class OwnProcess {
 public:
  OwnProcess();

  /// Errors: UsageError in a process that was forked since.
  void check(const char* operation, int rank) const;

 private:
  int forks_;  ///< of the process and its parents so far
};

}  // namespace lockstep::python
