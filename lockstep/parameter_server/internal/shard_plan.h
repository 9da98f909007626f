#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

/// Plans which server holds which elements and rows, and which rank has which role. Pure functions.
namespace lockstep::parameter_server::inline internal {

/// Elements `begin` to `end` of all dense parameters, concatenated.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Slice&) const = default;
};

/// A server's slice: contiguous, in the order of servers, of sizes that differ by at most one.
/// Errors: UsageError unless 0 <= server < servers.
Slice slice_of(std::int64_t elements, int server, int servers);

/// The number of a server's rows. Rows are assigned round-robin, since neighbors are often used
/// together: row r is number r / servers of server r % servers.
std::int64_t rows_of(std::int64_t rows, int server, int servers);

/// Role of a process.
struct Role {
  enum class Kind { kServer, kTrainer };
  Kind kind = Kind::kTrainer;
  int index = 0;  ///< among servers or trainers
  bool operator==(const Role&) const = default;
};

/// Values of assign_roles() for a process that was no server.
inline constexpr int kIsNew = -2;
inline constexpr int kWasTrainer = -1;  ///< other values: the index of a server

/// Roles by rank. Servers keep their role. New processes replace missing servers first, then
/// trainers do, whose state other trainers have too. Trainers are numbered by rank.
/// `before`: by rank, the index of the server that the process was, kWasTrainer or kIsNew.
/// Errors: UsageError for fewer than `servers` + 1 processes.
std::vector<Role> assign_roles(const std::vector<int>& before, int servers);

/// The number of elements of all parameters.
std::int64_t count_elements(const std::vector<at::Tensor>& parameters);

/// Copies the elements of a slice, with the tensor options of the first parameter, or float32
/// without parameters.
at::Tensor read_slice(const std::vector<at::Tensor>& parameters, const Slice& slice);

/// Writes `values`, [elements of the slice], to the parameters.
void write_slice(const std::vector<at::Tensor>& parameters, const Slice& slice,
                 const at::Tensor& values);

}  // namespace lockstep::parameter_server::inline internal
