// What a worker may be sent in the place of a call, an answer or gradients. Run by
// tests/fuzz/run.sh.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <ATen/ops/ones.h>

#include "lockstep/base/error.h"
#include "lockstep/rpc/internal/call_message.h"
#include "lockstep/rpc/internal/gradient_message.h"
#include "lockstep/rpc/internal/local_frame.h"

namespace lockstep::rpc {
namespace {

// Tensors come beside the bytes; some messages name them by number.
const std::vector<at::Tensor>& tensors() {
  static const std::vector<at::Tensor> all{at::ones({2, 3}), at::ones({0}), at::ones({3})};
  return all;
}

ValueContext context() {
  ValueContext context;
  context.make_rref = [](const RRefKey& key) { return c10::IValue(key.owner); };
  context.name_rref = [](const c10::IValue&) { return RRefKey{}; };
  return context;
}

// What comes through the socket of a worker of this machine.
void read_frames(std::string_view bytes) {
  FrameReader reader(std::size_t{1} << 25);
  while (!bytes.empty()) {
    const std::span<char> room = reader.next();
    const std::string_view now = bytes.substr(0, room.size());
    std::ranges::copy(now, room.begin());
    bytes.remove_prefix(now.size());
    reader.advance(now.size(), [](Frame frame) { to_outgoing(std::move(frame)); });
  }
}

void read(std::uint8_t kind, std::string_view bytes) {
  const MessageData parcel{{bytes.begin(), bytes.end()}, tensors()};
  switch (kind % 5) {
    case 0: {
      const CallRequest request = read_request(parcel, context());
      // What can be read can be written and read again.
      read_request(write_request(request, context()), context());
      return;
    }
    case 1: {
      const CallReply answer = read_answer(parcel, context());
      read_answer(write_answer(answer, context()), context());
      return;
    }
    case 2:
      read_gradient_message(bytes);
      return;
    case 3:
      read_cleanup_message(bytes);
      return;
    default:
      read_frames(bytes);
  }
}

}  // namespace
}  // namespace lockstep::rpc

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    lockstep::rpc::read(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const lockstep::UsageError&) {
    // Refused: the only other thing that may become of it.
  }
  return 0;
}
