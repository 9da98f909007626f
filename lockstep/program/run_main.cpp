#include "lockstep/program/run_main.h"

#include <chrono>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "diagnose/capture/crash_handler.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/log.h"

namespace lockstep {
namespace {

// The fields that are known.
nlohmann::json json_of(const ErrorFields& fields) {
  nlohmann::json known = nlohmann::json::object();
  if (!fields.operation.empty()) known["operation"] = fields.operation;
  if (!fields.group.empty()) known["group"] = fields.group;
  if (fields.own_rank) known["own_rank"] = *fields.own_rank;
  if (fields.sequence) known["sequence"] = *fields.sequence;
  if (fields.timeout) known["timeout_ms"] = fields.timeout->count();
  if (!fields.ranks.empty()) known["ranks"] = fields.ranks;
  return known;
}

// torchrun's schema: the launcher prints the message of the worker whose timestamp is the smallest;
// torchrun itself the call stack in place of the message, and a caught exception has none.
void write_error_file(const std::string& type, const std::string& message, int exit_code,
                      const ErrorFields& fields) {
  const auto path = env::text(env::kErrorFile);
  if (!path) return;
  keep_error_file();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto timestamp = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  const nlohmann::json report = {{"message",
                                  {{"message", type + ": " + message},
                                   {"errorCode", exit_code},
                                   {"extraInfo",
                                    {{"py_callstack", type + ": " + message},
                                     {"timestamp", std::to_string(timestamp)},
                                     {"fields", json_of(fields)}}}}}};
  std::ofstream(*path) << report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int report(const char* type, const std::string& message, int exit_code,
           const ErrorFields& fields = {}) {
  // Errors of LibTorch carry a backtrace after the first line; it belongs in the error file only.
  log(LogLevel::kError, message.substr(0, message.find('\n')));
  write_error_file(type, message, exit_code, fields);
  return exit_code;
}

}  // namespace

int run_main(const std::function<int()>& body) noexcept try {
  try {
    report_crashes();
    read_failpoints();
    return body();
  } catch (const OperationError& error) {
    return report(error.name(), error.what(), error.exit_code(), error.fields());
  } catch (const Error& error) {
    return report(error.name(), error.what(), error.exit_code());
  } catch (const std::exception& error) {
    return report("Exception", error.what(), kExitFailure);
  }
} catch (...) {
  log(LogLevel::kError, "an exception that is no std::exception ended the program");
  return kExitFailure;
}

}  // namespace lockstep
