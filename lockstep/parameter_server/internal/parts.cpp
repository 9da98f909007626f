#include "lockstep/parameter_server/internal/parts.h"

#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::parameter_server::inline internal {

void check_parts(const Parts& parts) {
  const auto fail = [](const auto&... words) {
    throw UsageError(concat("parameter servers: ", words...));
  };
  if (parts.parameters.empty() && parts.tables.empty()) fail("no parameters, and no tables");
  if (!parts.parameters.empty() && !parts.optimizer) fail("no optimizer for the parameters");
  if (!parts.tables.empty() && !parts.table_optimizer) fail("no table_optimizer for the tables");
  for (std::size_t index = 0; index < parts.parameters.size(); ++index) {
    const at::Tensor& parameter = parts.parameters[index];
    if (!parameter.defined() || !parameter.is_cpu() || !parameter.is_floating_point()) {
      fail("parameter ", index, " is no tensor of floating-point numbers on the CPU");
    }
    if (!parameter.is_contiguous()) {
      fail("the elements of parameter ", index, " do not lie in order: call contiguous()");
    }
    if (parameter.scalar_type() != parts.parameters[0].scalar_type()) {
      fail("parameter ", index, " is of dtype ", c10::toString(parameter.scalar_type()),
           ", parameter 0 of ", c10::toString(parts.parameters[0].scalar_type()));
    }
  }
  std::set<std::string> names;
  for (const Table& table : parts.tables) {
    if (table.rows < 1 || table.columns < 1) {
      fail("table '", table.name, "' of ", table.rows, " rows and ", table.columns,
           " columns; at least 1 of each");
    }
    if (!names.insert(table.name).second) fail("two tables are named '", table.name, "'");
  }
}

}  // namespace lockstep::parameter_server::inline internal
