#pragma once

#include "lockstep/base/error.h"

namespace lockstep {

/// A server or the network did not give what was asked of it.
class DownloadError : public Error {
 public:
  using Error::Error;
  const char* name() const noexcept override { return "DownloadError"; }
};

}  // namespace lockstep
