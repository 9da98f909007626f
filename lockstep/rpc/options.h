#pragma once

#include <chrono>
#include <map>
#include <string>
#include <unordered_map>

#include <c10/core/Device.h>

namespace lockstep::rpc {

/// By the name of the other worker, from a device here to one there.
using DeviceMaps = std::map<std::string, std::unordered_map<c10::Device, c10::Device>>;

/// Of a worker; names are those of torch.distributed.rpc.
struct Options {
  /// Of a call for which no other is given, and of init and shutdown.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// Threads that run what others call: as many functions at once. One that waits for another
  /// worker holds its thread meanwhile; where all of them wait, further calls wait too, and time
  /// out.
  int num_worker_threads = 16;
  /// A message, tensors included, that is larger is not sent, and is refused where it comes.
  std::int64_t max_message_bytes = std::int64_t{4} << 30;
  /// Where CUDA tensors go. Results come back the same way. Without one for its device a CUDA
  /// tensor cannot be sent.
  DeviceMaps device_maps = {};
};

/// Another worker, or this one.
struct WorkerInfo {
  std::string name;
  int rank = 0;
  bool operator==(const WorkerInfo&) const = default;
};

}  // namespace lockstep::rpc
