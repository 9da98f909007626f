// What bench/recovery/saves.py runs: harm done to snapshots, which are then loaded and compared bit
// for bit with what a formula gives.
//   save_faults kills FOLDER COUNT SEED BYTES   kills processes in the middle of a save
//   save_faults flips FOLDER EVERY              flips each bit, or each of so many, of a file
//   save_faults full FOLDER EVERY               a disk that is full after so many bytes, and so on
// Says "name number" lines: what was done, and how often it was silent or nothing could be loaded.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <new>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"
#include "lockstep/snapshot/snapshot_directory.h"

namespace lockstep::bench::save_faults {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

at::Tensor values_of(std::int64_t step, at::IntArrayRef sizes) {
  at::Tensor values = at::empty(sizes);
  auto* const at = values.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    at[i] = static_cast<float>((step * 1'000'003 + i * 7919) % 16'777'213);
  }
  return values;
}

// A training whose state follows from its step.
struct State {
  explicit State(std::int64_t bytes)
      : net(torch::nn::LinearOptions(16, bytes / 64).bias(false)),
        optimizer(net->parameters(), 0.1) {}

  void set(std::int64_t step) {
    const at::NoGradGuard no_grad;
    net->weight.copy_(values_of(step, net->weight.sizes()));
    extra = values_of(step + 1, {17});
  }

  void save(SnapshotDirectory& folder, std::int64_t step) {
    folder.save(*net, optimizer, {.step = step, .extra = {{"extra", extra}}});
  }

  torch::nn::Linear net;
  torch::optim::SGD optimizer;
  at::Tensor extra;
};

struct Loaded {
  std::int64_t step = -1;  ///< -1: none could be
  bool is_right = false;   ///< each bit is that of its step
};

Loaded load(const fs::path& folder, std::int64_t bytes) try {
  State state(bytes);
  const auto resumed = SnapshotDirectory(folder).load_latest(*state.net, state.optimizer);
  if (!resumed) return {};
  State expected(bytes);
  expected.set(resumed->step);
  return {.step = resumed->step,
          .is_right = testing::same_bits(state.net->weight, expected.net->weight) &&
                      testing::same_bits(resumed->extra.at(0).second, expected.extra)};
} catch (const Error&) {
  return {};
}

void say(const char* name, std::int64_t number) {
  std::printf("%s %lld\n", name, static_cast<long long>(number));
}

// What a saving process tells of itself, in memory that is left when it is killed.
struct Told {
  std::atomic<bool> is_saving = false;
  std::atomic<std::int64_t> saved = 0;
};

Told& shared_memory() {
  void* const memory =
      ::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw SystemError("share memory with processes", errno);
  return *new (memory) Told;
}

[[noreturn]] void save_for_ever(const fs::path& folder, std::int64_t bytes, Told& told) {
  SnapshotDirectory snapshots(folder);
  State state(bytes);
  for (std::int64_t step = told.saved + 1;; ++step) {
    state.set(step);
    told.is_saving = true;
    state.save(snapshots, step);
    told.saved = step;
    told.is_saving = false;
  }
}

struct Files {
  std::int64_t snapshots = 0;
  std::int64_t temporaries = 0;
};

Files files_in(const fs::path& folder) {
  Files files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    ++(SnapshotName::parse(entry.path().filename().native()) ? files.snapshots : files.temporaries);
  }
  return files;
}

int kill_savers(const fs::path& folder, std::int64_t count, std::uint64_t seed,
                std::int64_t bytes) {
  std::mt19937_64 random(seed);
  Told& told = shared_memory();
  SnapshotDirectory snapshots(folder);
  State state(bytes);
  Clock::duration one_save{};
  for (; told.saved < 2; ++told.saved) {
    state.set(told.saved + 1);
    const auto start = Clock::now();
    state.save(snapshots, told.saved + 1);
    one_save = Clock::now() - start;
  }
  std::int64_t in_a_save = 0, between = 0, lost = 0, silent = 0, unloadable = 0, half_written = 0;
  while (in_a_save < count) {
    told.is_saving = false;
    const pid_t saver = ::fork();
    if (saver == 0) save_for_ever(folder, bytes, told);
    if (saver < 0) throw SystemError("start a process", errno);
    while (!told.is_saving) ::poll(nullptr, 0, 0);
    // Anywhere in the next two saves. Nothing is waited for but the instant itself.
    const auto instant = std::chrono::nanoseconds(random() % (2 * one_save.count() + 1));
    const timespec wait{.tv_sec = instant.count() / 1'000'000'000,
                        .tv_nsec = instant.count() % 1'000'000'000};
    ::nanosleep(&wait, nullptr);
    ::kill(saver, SIGKILL);
    ::waitpid(saver, nullptr, 0);
    ++(told.is_saving ? in_a_save : between);
    half_written += files_in(folder).temporaries > 0 ? 1 : 0;
    const Loaded loaded = load(folder, bytes);
    unloadable += loaded.step < 0 ? 1 : 0;
    silent += loaded.step >= 0 && !loaded.is_right ? 1 : 0;
    // One that was complete but for its report may be there.
    lost += loaded.step < told.saved || loaded.step > told.saved + 1 ? 1 : 0;
    if (loaded.step > 0) told.saved = loaded.step;
  }
  state.set(told.saved + 1);
  state.save(snapshots, told.saved + 1);
  const Files files = files_in(folder);
  say("kills", in_a_save);
  say("kills_between", between);
  say("half_written", half_written);
  say("save_us", std::chrono::duration_cast<std::chrono::microseconds>(one_save).count());
  say("left", files.snapshots - 2 + files.temporaries);
  say("lost", lost);
  say("silent", silent);
  say("unloadable", unloadable);
  return 0;
}

constexpr std::int64_t kSmallBytes = 256;

void save_two(const fs::path& folder) {
  SnapshotDirectory snapshots(folder);
  State state(kSmallBytes);
  for (const std::int64_t step : {1, 2}) {
    state.set(step);
    state.save(snapshots, step);
  }
}

// The one before is found whatever bit of the newest is flipped.
int flip_bits(const fs::path& folder, std::size_t every) {
  save_two(folder);
  const fs::path newest = folder / SnapshotName{0, 2}.file_name();
  const std::string good = testing::file_bytes(newest);
  std::int64_t flips = 0, silent = 0, unloadable = 0;
  for (std::size_t bit = 0; bit < 8 * good.size(); bit += every) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    testing::put_file_bytes(newest, bad);
    const Loaded loaded = load(folder, kSmallBytes);
    ++flips;
    unloadable += loaded.step < 0 ? 1 : 0;
    silent += loaded.step == 2 || (loaded.step == 1 && !loaded.is_right) ? 1 : 0;
  }
  say("file_bytes", static_cast<std::int64_t>(good.size()));
  say("flips", flips);
  say("silent", silent);
  say("unloadable", unloadable);
  return 0;
}

// Until there is room for all.
int fill_disk(const fs::path& folder, std::size_t every) {
  save_two(folder);
  State state(kSmallBytes);
  state.set(3);
  std::int64_t full = 0, silent = 0, unloadable = 0;
  for (std::size_t bytes = 0;; bytes += every) {
    std::string message;
    {
      const testing::FullDisk disk(bytes);
      SnapshotDirectory snapshots(folder);
      message = testing::message_of<SystemError>([&] { state.save(snapshots, 3); });
    }
    const Loaded loaded = load(folder, kSmallBytes);
    const bool is_there = message == "no error";
    unloadable += loaded.step < 0 ? 1 : 0;
    const bool is_named = message.find(SnapshotName{0, 3}.file_name()) != std::string::npos &&
                          message.find("free some space") != std::string::npos;
    silent += !loaded.is_right || loaded.step != (is_there ? 3 : 2) || is_named == is_there ? 1 : 0;
    if (is_there) break;
    ++full;
  }
  say("disks", full);
  say("silent", silent);
  say("unloadable", unloadable);
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  const auto number = [&](std::size_t at) {
    const auto value =
        at < arguments.size() ? parse_number<std::int64_t>(arguments[at]) : std::nullopt;
    if (!value || *value < 1) throw UsageError("usage: bench/recovery/save_faults.cpp has it");
    return *value;
  };
  at::set_num_threads(1);  // A forked process has no other.
  const std::string what = arguments.empty() ? "" : arguments[0];
  const fs::path folder = arguments.size() > 1 ? arguments[1] : "";
  if (what == "kills") {
    return kill_savers(folder, number(2), static_cast<std::uint64_t>(number(3)), number(4));
  }
  if (what == "flips") return flip_bits(folder, static_cast<std::size_t>(number(2)));
  if (what == "full") return fill_disk(folder, static_cast<std::size_t>(number(2)));
  throw UsageError(concat("save_faults: '", what, "' is none of kills, flips and full"));
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] { return run({argv + 1, argv + argc}); });
}

}  // namespace lockstep::bench::save_faults
