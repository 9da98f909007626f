#pragma once

#include <exception>
#include <string>

namespace lockstep::rpc::inline internal {

/// "UsageError", "std::out_of_range", ….
std::string type_name_of(const std::exception& error);

}  // namespace lockstep::rpc::inline internal
