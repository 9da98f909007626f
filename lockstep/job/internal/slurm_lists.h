#pragma once

#include <optional>
#include <string>
#include <string_view>

/// How Slurm writes lists in its variables.
namespace lockstep::inline internal {

/// The first host of a list: n03-ib of "n[03-05,9]-ib,login". Nothing of what is no such list.
std::optional<std::string> first_host(std::string_view hosts);

/// How many tasks are on a node (numbered from 0): of "3(x2),1" 3, 3 and 1. Nothing of what is no
/// such list, or a shorter one.
std::optional<int> tasks_on_node(std::string_view tasks_per_node, int node);

}  // namespace lockstep::inline internal
