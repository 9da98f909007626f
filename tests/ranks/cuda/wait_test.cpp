// Waits for collectives over nccl in a job that replaces failed ranks. A job of its own: the
// default group is made anew, and its first store must be gone by then.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/os/files/temporary_directory.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

// Rank 1 comes when the wait of rank 0 has gone through several slices, in each of which the
// program may end it. It is told by a file: a message would go the way that is tested.
TEST(CudaWait, ForARankThatIsLateGoesOn) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "needs a CUDA device";
  NEEDS_RANKS(2);
  if (default_process_group().backend_name() != "nccl") GTEST_SKIP() << "of backend nccl";
  const int rank = default_process_group().rank();
  std::optional<TemporaryDirectory> folder;
  if (rank == 0) folder.emplace(temporary_folder(), "lockstep_cuda_wait_");
  const std::string own_path = folder ? folder->path().string() : "";
  const std::filesystem::path told =
      std::filesystem::path(broadcast_text(default_process_group(), own_path, 0)) / "come";
  destroy_process_group();

  constexpr int kSlices = 4;
  bool is_waiting = false;
  int asked = 0;
  const ProcessGroup group =
      init_process_group({.timeout = std::chrono::seconds(60), .while_waiting = [&] {
                            if (is_waiting && ++asked == kSlices) std::ofstream(told).close();
                          }});
  at::Tensor tensor = at::ones({5}, at::TensorOptions(group.device()));
  group.all_reduce(tensor);  // Connects.
  while (rank == 1 && !std::filesystem::exists(told)) std::this_thread::yield();
  is_waiting = rank == 0;
  group.all_reduce(tensor);
  is_waiting = false;
  EXPECT_TRUE(at::equal(tensor.cpu(), at::full({5}, 4.0)));
  EXPECT_GE(asked, rank == 0 ? kSlices : 0);
  destroy_process_group();
}

}  // namespace
}  // namespace lockstep::testing
