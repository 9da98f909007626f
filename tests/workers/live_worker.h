// What workers of live jobs print, each line after the process's pid, the bits of their state, and
// the error that a test asks for.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"

namespace lockstep::testing {

inline void say(const std::string& text) {
  std::puts(concat(::getpid(), " ", text).c_str());
  std::fflush(stdout);
}

inline constexpr env::Variable kStepRead{"LIVE_WORKER_STEP_READ", "path",
                                         "file with the last step that the test has read"};

/// Says that the step is done, and waits while the test is many steps behind: it is to find the job
/// where it wants to disturb it.
inline void say_step(std::int64_t step, const std::string& text = "") {
  constexpr std::int64_t kMostAhead = 40;
  static const int file = [] {
    const auto path = env::text(kStepRead);
    return path ? ::open(path->c_str(), O_RDONLY | O_CLOEXEC) : -1;
  }();
  say(concat("step ", step, text));
  std::int64_t read = 0;
  while (file >= 0 && ::pread(file, &read, sizeof read, 0) == sizeof read &&
         read + kMostAhead < step) {
    ::usleep(1000);
  }
}

inline constexpr env::Variable kThrow{
    "LIVE_WORKER_THROW", "text", "RANK:STEP, at which a process of the first generation throws"};

/// The program's own error, where a test asks for it.
inline void throw_if_told(int rank, std::int64_t step) {
  static const std::string told =
      env::integer(env::kRestartCount).value_or(0) == 0 ? env::text(kThrow).value_or("") : "";
  if (!told.empty() && told == concat(rank, ":", step)) throw Error("the program has failed");
}

inline constexpr std::uint64_t kEmptyHash = 0xcbf29ce484222325U;

// FNV-1a.
inline void hash(std::uint64_t& sum, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  const auto* const bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
  for (const unsigned char byte : std::span(bytes, dense.nbytes())) {
    sum = (sum ^ byte) * 0x100000001b3U;
  }
}

inline void hash(std::uint64_t& sum, const c10::IValue& value) {
  if (value.isTensor()) {
    hash(sum, value.toTensor());
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) hash(sum, item.value());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) hash(sum, item);
  } else if (value.isDouble()) {
    hash(sum, at::tensor(value.toDouble(), at::kDouble));
  }
}

}  // namespace lockstep::testing
