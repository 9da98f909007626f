#include "lockstep/one_copy/internal/copy_memory.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/random_id.h"
#include "lockstep/os/socket/unix_socket.h"

namespace lockstep::inline internal {
namespace {

// How often rank 0, which waits for connections, looks whether its peers still live.
constexpr std::chrono::milliseconds kBetweenLooks{20};
constexpr std::int64_t kMostNameBytes = 96;

at::Tensor name_tensor() {
  return at::zeros({kMostNameBytes}, at::kByte);
}

// The barrier ends when all ranks have the file; until then asking it finds a rank that is lost.
UniqueFd serve_file(const ProcessGroup& group, const std::string& name, std::uint64_t bytes) {
  UniqueFd file = make_memory_file(concat("lockstep ", name).substr(0, 200).c_str(), bytes);
  const std::string address = concat("lockstep-", random_id());
  const UniqueFd listener = listen_abstract(address);
  const at::Tensor told = name_tensor();
  std::memcpy(told.mutable_data_ptr(), address.data(),
              std::min<std::size_t>(address.size(), kMostNameBytes - 1));
  group.broadcast(told, 0, {.name = "one copy, address"});
  const Work arrival = group.barrier({.async_op = true, .name = "one copy, memory"});
  for (int served = 1; served < group.world_size();) {
    const UniqueFd socket = accept_same_user(listener.get(), Deadline::after(kBetweenLooks));
    if (arrival.is_completed()) break;
    if (!socket.valid()) continue;
    ++served;
    try {
      send_fd(socket.get(), bytes, file.get());
    } catch (const SystemError&) {
      // The rank is lost, which the barrier says, or throws an error of its own.
    }
  }
  arrival.wait();
  return file;
}

UniqueFd receive_file(const ProcessGroup& group) {
  const at::Tensor told = name_tensor();
  group.broadcast(told, 0, {.name = "one copy, address"});
  UniqueFd file;
  std::exception_ptr error;
  try {
    const UniqueFd socket = connect_abstract(static_cast<const char*>(told.const_data_ptr()));
    file = receive_fd(socket.get(), Deadline::after(group.timeout())).fd;
  } catch (const Error&) {
    error = std::current_exception();
  }
  // Where rank 0 or another was lost, this error has the name that recovery looks for.
  group.barrier({.name = "one copy, memory"});
  if (error) std::rethrow_exception(error);
  return file;
}

}  // namespace

std::shared_ptr<CopyMemory> make_copy_memory(const ProcessGroup& group, const std::string& name,
                                             std::uint64_t bytes, std::uint64_t seen_bytes) {
  UniqueFd file = group.rank() == 0 ? serve_file(group, name, bytes) : receive_file(group);
  return std::make_shared<CopyMemory>(std::move(file), bytes, seen_bytes);
}

}  // namespace lockstep::inline internal
