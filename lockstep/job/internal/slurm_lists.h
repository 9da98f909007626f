#pragma once

#include <optional>
#include <string>
#include <string_view>

/// Parsers of lists in Slurm's variables.
namespace lockstep::inline internal {

/// First host of a list: n03-ib of "n[03-05,9]-ib,login". Empty for other texts.
std::optional<std::string> first_host(std::string_view hosts);

/// Number of tasks on a node, from 0: of "3(x2),1" 3, 3 and 1. Empty for other texts, or a shorter
/// list.
std::optional<int> tasks_on_node(std::string_view tasks_per_node, int node);

}  // namespace lockstep::inline internal
