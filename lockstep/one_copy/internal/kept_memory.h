#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/one_copy/internal/copy_memory.h"

namespace lockstep::inline internal {

/// The memory of one copy with the parameters in it, through a change of generation: ranks that
/// have the state keep it, and replacements map it instead of a transfer.
/// Threads: one at a time.
/// Errors: SystemError.
class KeptMemory {
 public:
  /// An offset in one of the memories, equal on all ranks.
  struct Place {
    std::size_t memory = 0;
    std::uint64_t offset = 0;
  };
  /// Offset of a parameter.
  struct Binding {
    std::size_t parameter = 0;
    Place place = {};
  };

  /// The memories in which these parameters are in this process.
  explicit KeptMemory(std::vector<at::Tensor> parameters);

  const std::vector<std::shared_ptr<CopyMemory>>& memories() const { return memories_; }
  const std::vector<Binding>& bindings() const { return bindings_; }
  /// Whether all trained parameters with elements are in it; set_data() may have moved some.
  bool has_all_trained() const;

  std::optional<Place> find(const void* data) const;
  /// The storage that begins there, as a byte tensor; for a parameter the one that bind() gives it.
  at::Tensor storage_at(const Place& place, std::uint64_t bytes) const;
  /// On a rank that has received it: moves the parameters into it.
  void bind();

 private:
  friend std::optional<KeptMemory> keep_memory(const ProcessGroup& group,
                                               std::vector<at::Tensor> parameters, int source,
                                               bool is_receiver);
  std::uint64_t digest_of_shapes() const;
  std::uint64_t digest_of_places() const;
  bool is_kept() const;
  void send(const ProcessGroup& group, int source, int receivers) const;
  void receive(const ProcessGroup& group, int source, int receivers, bool is_receiver);

  std::vector<at::Tensor> parameters_;
  std::vector<std::shared_ptr<CopyMemory>> memories_ = {};
  std::vector<Binding> bindings_ = {};
  std::map<const std::byte*, at::Tensor> views_ = {};  ///< Of what was received, by address.
};

/// What all ranks keep, or receive from rank `source`: the same memory with the same parameters, in
/// which each rank sees the common state. Empty on all ranks if some have none. Collective, in a
/// group whose ranks share memory.
/// Errors: as Work::wait.
std::optional<KeptMemory> keep_memory(const ProcessGroup& group, std::vector<at::Tensor> parameters,
                                      int source = 0, bool is_receiver = false);

}  // namespace lockstep::inline internal
