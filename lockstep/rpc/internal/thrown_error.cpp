#include "lockstep/rpc/internal/thrown_error.h"

#include <cstdlib>
#include <typeinfo>

#include <cxxabi.h>

#include "lockstep/base/error.h"

namespace lockstep::rpc::inline internal {

std::string type_name_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return own->name();
  int status = 0;
  char* const name = abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status);
  const std::string text = status == 0 ? name : typeid(error).name();
  std::free(name);
  return text;
}

}  // namespace lockstep::rpc::inline internal
