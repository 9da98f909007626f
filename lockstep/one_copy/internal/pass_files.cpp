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

constexpr std::int64_t kMostNameBytes = 96;

at::Tensor name_tensor() {
  return at::zeros({kMostNameBytes}, at::kByte);
}

void exchange_address(const ProcessGroup& group, const FilePassing& passing,
                      const at::Tensor& address) {
  group.broadcast(address, passing.source, {.name = passing.purpose + ", address"});
}

// Receivers have connected, as far as they can: a connection needs no accept. A rank that is lost
// is found here, and no rank waits for another outside of a collective but for what is sent
// already.
void wait_for_connections(const ProcessGroup& group, const FilePassing& passing) {
  group.barrier({.name = passing.purpose + ", connected"});
}

// Where the source or another was lost, this error has the name that recovery looks for.
void wait_for_files(const ProcessGroup& group, const FilePassing& passing) {
  group.barrier({.name = passing.purpose + ", memory"});
}

void serve(const ProcessGroup& group, const FilePassing& passing, std::span<const int> files) {
  const std::string address = concat("lockstep-", random_id());
  const UniqueFd listener = listen_abstract(address);
  const at::Tensor told = name_tensor();
  std::memcpy(told.mutable_data_ptr(), address.data(),
              std::min<std::size_t>(address.size(), kMostNameBytes - 1));
  exchange_address(group, passing, told);
  wait_for_connections(group, passing);
  for (int served = 0; served < passing.receivers; ++served) {
    const UniqueFd socket = accept_same_user(listener.get(), Deadline::after({}));
    if (!socket.valid()) break;
    try {
      for (const int file : files) send_fd(socket.get(), 0, file);
    } catch (const SystemError&) {
      // The rank is lost, which the barrier says, or throws an error of its own.
    }
  }
  wait_for_files(group, passing);
}

std::vector<UniqueFd> receive(const ProcessGroup& group, const FilePassing& passing) {
  const at::Tensor told = name_tensor();
  exchange_address(group, passing, told);
  std::vector<UniqueFd> files;
  std::exception_ptr error;
  UniqueFd socket;
  const auto attempt = [&](const auto& part) {
    if (!passing.is_receiver || error) return;
    try {
      part();
    } catch (const Error&) {
      error = std::current_exception();
    }
  };
  attempt([&] { socket = connect_abstract(static_cast<const char*>(told.const_data_ptr())); });
  wait_for_connections(group, passing);
  attempt([&] {
    while (files.size() < passing.files) {
      files.push_back(receive_fd(socket.get(), Deadline::after(group.timeout())).fd);
    }
  });
  wait_for_files(group, passing);
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
