#include "lockstep/base/error.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "lockstep/base/internal/concat.h"

namespace lockstep {
namespace {

// Whatever was tried, these have one cure.
std::string advice_for(int errno_value, const std::string& advice) {
  if (errno_value == EMFILE || errno_value == ENFILE) {
    return "; raise the limit on open files (ulimit -n)";
  }
  return advice.empty() ? "" : concat("; ", advice);
}

const ErrorFields kNoFields;

}  // namespace

std::string describe(const ErrorFields& fields) {
  return concat(fields.operation, fields.sequence ? concat(" number ", *fields.sequence) : "",
                fields.group.empty() ? "" : concat(" of group '", fields.group, "'"),
                fields.own_rank ? concat(" on rank ", *fields.own_rank) : "");
}

OperationError::OperationError(ErrorFields fields, const std::string& reason)
    : Error(concat(describe(fields), ": ", reason)),
      fields_(std::make_shared<const ErrorFields>(std::move(fields))) {}

OperationError::OperationError(const std::string& message, ErrorFields fields)
    : Error(message), fields_(std::make_shared<const ErrorFields>(std::move(fields))) {}

const ErrorFields& OperationError::fields() const noexcept {
  return fields_ ? *fields_ : kNoFields;
}

std::optional<int> OperationError::rank() const noexcept {
  const std::vector<int>& ranks = fields().ranks;
  return ranks.size() == 1 ? std::optional(ranks.front()) : std::nullopt;
}

SystemError::SystemError(const std::string& operation, int errno_value, const std::string& advice)
    : Error(concat(operation, ": ", std::generic_category().message(errno_value),
                   advice_for(errno_value, advice))),
      errno_value_(errno_value) {}

}  // namespace lockstep
