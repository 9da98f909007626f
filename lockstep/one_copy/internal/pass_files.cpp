#include "lockstep/one_copy/internal/pass_files.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <string>

#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/random_id.h"
#include "lockstep/os/socket/unix_socket.h"

namespace lockstep::inline internal {
namespace {

// How often the source, which waits for connections, looks whether its peers still live.
constexpr std::chrono::milliseconds kBetweenLooks{20};
constexpr std::int64_t kMostNameBytes = 96;

at::Tensor name_tensor() {
  return at::zeros({kMostNameBytes}, at::kByte);
}

// The barrier ends when all ranks have the files; until then asking it finds a rank that is lost.
void serve(const ProcessGroup& group, const FilePassing& passing, std::span<const int> files) {
  const std::string address = concat("lockstep-", random_id());
  const UniqueFd listener = listen_abstract(address);
  const at::Tensor told = name_tensor();
  std::memcpy(told.mutable_data_ptr(), address.data(),
              std::min<std::size_t>(address.size(), kMostNameBytes - 1));
  group.broadcast(told, passing.source, {.name = passing.purpose + ", address"});
  const Work arrival = group.barrier({.async_op = true, .name = passing.purpose + ", memory"});
  for (int served = 0; served < passing.receivers;) {
    const UniqueFd socket = accept_same_user(listener.get(), Deadline::after(kBetweenLooks));
    if (arrival.is_completed()) break;
    if (!socket.valid()) continue;
    ++served;
    try {
      for (const int file : files) send_fd(socket.get(), 0, file);
    } catch (const SystemError&) {
      // The rank is lost, which the barrier says, or throws an error of its own.
    }
  }
  arrival.wait();
}

std::vector<UniqueFd> receive(const ProcessGroup& group, const FilePassing& passing) {
  const at::Tensor told = name_tensor();
  group.broadcast(told, passing.source, {.name = passing.purpose + ", address"});
  std::vector<UniqueFd> files;
  std::exception_ptr error;
  if (passing.is_receiver) {
    try {
      const UniqueFd socket = connect_abstract(static_cast<const char*>(told.const_data_ptr()));
      while (files.size() < passing.files) {
        files.push_back(receive_fd(socket.get(), Deadline::after(group.timeout())).fd);
      }
    } catch (const Error&) {
      error = std::current_exception();
    }
  }
  // Where the source or another was lost, this error has the name that recovery looks for.
  group.barrier({.name = passing.purpose + ", memory"});
  if (error) std::rethrow_exception(error);
  return files;
}

}  // namespace

std::vector<UniqueFd> pass_files(const ProcessGroup& group, const FilePassing& passing,
                                 std::span<const int> own) {
  if (passing.receivers == 0) return {};
  if (group.rank() != passing.source) return receive(group, passing);
  serve(group, passing, own);
  return {};
}

}  // namespace lockstep::inline internal
