#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

/// Which server holds what. Pure.
namespace lockstep::parameter_server::inline internal {

/// Elements `begin` to `end` of all dense parameters laid end to end.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Slice&) const = default;
};

/// Contiguous slices in the servers' order, whose sizes differ by one at most.
/// Errors: UsageError unless 0 <= server < servers.
Slice slice_of(std::int64_t elements, int server, int servers);

/// Rows are dealt out in turn, so that neighbours, which are often wanted alike, lie on different
/// servers: row r is the (r / servers)-th of server r % servers.
std::int64_t rows_of(std::int64_t rows, int server, int servers);

/// Who does what, the first time and when processes were lost or came.
struct Role {
  enum class Kind { kServer, kTrainer };
  Kind kind = Kind::kTrainer;
  int index = 0;  ///< among those of its kind
  bool operator==(const Role&) const = default;
};

/// What a process was before.
inline constexpr int kIsNew = -2;
inline constexpr int kWasTrainer = -1;  ///< else the index of the server that it was

/// Roles by rank. Servers stay what they are; the places of those that are missing go to new
/// processes first, then to trainers, which keep nothing that others do not have. Trainers are
/// numbered by rank.
/// Errors: UsageError for fewer than `servers` + 1 processes.
std::vector<Role> assign_roles(const std::vector<int>& before, int servers);

std::int64_t count_elements(const std::vector<at::Tensor>& parameters);

/// A copy of the elements of a slice; none have the options of the first parameter, or Float.
at::Tensor read_slice(const std::vector<at::Tensor>& parameters, const Slice& slice);

/// `values`: [elements of the slice].
void write_slice(const std::vector<at::Tensor>& parameters, const Slice& slice,
                 const at::Tensor& values);

}  // namespace lockstep::parameter_server::inline internal
