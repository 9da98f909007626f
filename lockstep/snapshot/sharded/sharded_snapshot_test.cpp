#include "lockstep/snapshot/sharded/sharded_snapshot.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <random>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/memory_limit_testing.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/internal/small_net.h"
#include "lockstep/snapshot/internal/snapshot_list.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/sharded/share_tree.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::testing {
namespace {

/// A training whose snapshots several ranks write, all of them played by this process.
class ShardedSnapshotTest : public ::testing::Test {
 protected:
  ShardedSnapshotTest() { train(net_, optimizer_, 3); }

  std::filesystem::path path() const { return directory_.path() / "run"; }
  std::filesystem::path snapshot_path(std::int64_t step) const {
    return path() / SnapshotName{0, step, true}.file_name();
  }
  ShardedSave save_of(std::int64_t step, int ranks, const std::string& id = "00000000000000aa") {
    return {.directory = snapshot_path(step), .save_id = id, .step = step, .world_size = ranks};
  }

  Snapshot snapshot(std::int64_t step, int ranks) {
    Snapshot whole{.model = state_dict(*net_),
                   .optimizer = optimizer_state_dict(optimizer_),
                   .step = step,
                   .world_size = ranks};
    whole.extra = {{"best", at::full({3}, step)}};
    return whole;
  }

  void write_part(const ShardedSave& save, int rank) {
    Snapshot whole = snapshot(save.step, save.world_size);
    const auto bytes = replicated_bytes(whole, StatePlacement::kReplicated);
    const auto kept = std::vector<std::uint64_t>(static_cast<std::size_t>(save.world_size));
    if (rank != 0) whole.extra.clear();
    write_share(save, rank,
                share_value(share_of(std::move(whole), StatePlacement::kReplicated,
                                     plan_shares(bytes, kept), rank),
                            save.save_id));
  }
  void complete(const ShardedSave& save) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : state_dict(*net_)) names.push_back(name);
    complete_sharded(save, names, Deadline::after(std::chrono::milliseconds(20)), {});
  }
  void write_all(const ShardedSave& save) {
    for (int rank = 0; rank < save.world_size; ++rank) write_part(save, rank);
    complete(save);
  }

  std::vector<std::string> files(const std::filesystem::path& directory) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    return names;
  }

  /// Of a run that goes on from the newest snapshot, the step; its state must be the saved one.
  std::int64_t resumed_step() {
    SmallNet net;
    torch::optim::Adam optimizer(net->parameters(), 0.5);
    const auto resumed = SnapshotDirectory(path()).load_latest(*net, optimizer);
    if (!resumed) return -1;
    EXPECT_TRUE(same_weights(net, net_));
    EXPECT_TRUE(at::equal(resumed->extra.at(0).second, at::full({3}, resumed->step)));
    const auto saved = described_tensors(optimizer_state_dict(optimizer_));
    EXPECT_EQ(described_tensors(optimizer_state_dict(optimizer)), saved);
    at::manual_seed(7);
    SmallNet undisturbed;
    load_state_dict(*undisturbed, state_dict(*net_));
    torch::optim::Adam other(undisturbed->parameters(), 0.5);
    load_optimizer_state_dict(other, optimizer_state_dict(optimizer_));
    at::manual_seed(8);
    train(undisturbed, other, 2);
    at::manual_seed(8);
    train(net, optimizer, 2);
    EXPECT_TRUE(same_weights(net, undisturbed));
    return resumed->step;
  }

  TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "sharded-snapshot-"};
  SmallNet net_;
  torch::optim::Adam optimizer_{net_->parameters(), 0.01};
};

TEST_F(ShardedSnapshotTest, OfAnyNumberOfRanksIsTheSameSnapshot) {
  for (const int ranks : {1, 2, 3, 4, 40}) {
    write_all(save_of(ranks, ranks));
    EXPECT_EQ(files(snapshot_path(ranks)).size(), static_cast<std::size_t>(ranks) + 1);
    const Snapshot read = load_snapshot(snapshot_path(ranks));
    const TensorDict expected = state_dict(*net_);
    ASSERT_EQ(read.model.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(read.model[i].first, expected[i].first);
      EXPECT_TRUE(same_bits(read.model[i].second, expected[i].second));
    }
    EXPECT_EQ(read.world_size, ranks);
    EXPECT_EQ(resumed_step(), ranks);
  }
}

TEST_F(ShardedSnapshotTest, EachRankWritesAboutAsMuchAndEachTensorIsWrittenOnce) {
  write_all(save_of(1, 3));
  const SnapshotManifest manifest = read_manifest(snapshot_path(1) / kManifestName);
  std::set<std::string> names;
  std::set<std::size_t> writers;
  for (const ManifestTensor& tensor : manifest.tensors) {
    EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
    writers.insert(tensor.file);
  }
  EXPECT_EQ(writers.size(), 3u);
  EXPECT_EQ(manifest.tensors.front().name, "model.first.weight");
  EXPECT_EQ(manifest.tensors.front().dtype, "float32");
  EXPECT_EQ(manifest.tensors.front().shape, (std::vector<std::int64_t>{8, 4}));
}

TEST_F(ShardedSnapshotTest, APartOfALargerStorageIsWrittenWithoutTheRest) {
  const at::Tensor large = at::ones({1 << 20});
  const Snapshot whole{.model = {{"part", large.slice(0, 5, 9)}},
                       .optimizer = optimizer_state_dict(optimizer_)};
  const auto bytes = replicated_bytes(whole, StatePlacement::kReplicated);
  const Snapshot share =
      share_of(whole, StatePlacement::kReplicated, std::vector<int>(bytes.size()), 0);
  EXPECT_EQ(share.model.at(0).second.storage().nbytes(), 16u);
}

TEST_F(ShardedSnapshotTest, WithoutAManifestThereIsNoneAndTheNextSaveDeletesIt) {
  write_all(save_of(1, 2));
  write_part(save_of(2, 2), 0);
  write_part(save_of(2, 2), 1);
  EXPECT_EQ(resumed_step(), 1);
  EXPECT_EQ(SnapshotDirectory(path()).newest()->step, 1);
  EXPECT_EQ(list_snapshots(path()).unfinished.size(), 1u);
  SnapshotDirectory(path(), {.sharded_saves = true})
      .save(*net_, optimizer_, {.step = 3, .extra = {{"best", at::full({3}, 3)}}});
  EXPECT_EQ(files(path()),
            (std::vector<std::string>{"snapshot-e0000-s00000001", "snapshot-e0000-s00000003"}));
  EXPECT_EQ(resumed_step(), 3);
}

TEST_F(ShardedSnapshotTest, AnUnfinishedOneThatIsLaterThanTheOneWrittenStays) {
  write_all(save_of(3, 1));
  write_part(save_of(2, 2), 0);
  write_part(save_of(4, 2), 0);  // Which ranks may be about to complete.
  delete_surplus(
      path(), {0, 3, true}, 2, [](const SnapshotName&) { return true; },
      [](const SnapshotName&) {});
  EXPECT_EQ(files(path()),
            (std::vector<std::string>{"snapshot-e0000-s00000003", "snapshot-e0000-s00000004"}));
}

TEST_F(ShardedSnapshotTest, APartThatDoesNotComeIsNamed) {
  const ShardedSave save = save_of(1, 4);
  write_part(save, 0);
  write_part(save, 2);
  write_part(save_of(1, 4, "00000000000000bb"), 3);  // Of another save.
  try {
    complete(save);
    ADD_FAILURE() << "completed";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.fields().ranks, (std::vector<int>{1, 3}));
    EXPECT_NE(std::string(error.what()).find("the shard of rank 1, 3 is missing"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(resumed_step(), -1);
}

TEST_F(ShardedSnapshotTest, SavedAgainItIsReplacedInOneInstant) {
  write_all(save_of(1, 3));
  const ShardedSave again = save_of(1, 2, "00000000000000bb");
  write_part(again, 0);
  EXPECT_EQ(load_snapshot(snapshot_path(1)).world_size, 3);
  write_part(again, 1);
  complete(again);
  EXPECT_EQ(load_snapshot(snapshot_path(1)).world_size, 2);
  EXPECT_EQ(files(snapshot_path(1)),
            (std::vector<std::string>{"manifest.json", "rank0-of-2-00000000000000bb.pt",
                                      "rank1-of-2-00000000000000bb.pt"}));
}

TEST_F(ShardedSnapshotTest, BothKindsLieInOneDirectoryAndRetentionCountsThemTogether) {
  const auto save = [&](std::int64_t step, bool sharded) {
    SnapshotDirectory(path(), {.sharded_saves = sharded})
        .save(*net_, optimizer_, {.step = step, .extra = {{"best", at::full({3}, step)}}});
  };
  save(1, false);
  save(2, true);
  EXPECT_EQ(resumed_step(), 2);
  save(3, false);
  EXPECT_EQ(resumed_step(), 3);
  EXPECT_EQ(files(path()),
            (std::vector<std::string>{"snapshot-e0000-s00000002", "snapshot-e0000-s00000003.pt"}));
  save(4, true);
  save(5, true);
  EXPECT_EQ(files(path()),
            (std::vector<std::string>{"snapshot-e0000-s00000004", "snapshot-e0000-s00000005"}));
}

TEST_F(ShardedSnapshotTest, DamageInAnyRegionOfAnyFileIsNeverLoaded) {
  write_all(save_of(1, 2));
  write_all(save_of(2, 2));
  const std::filesystem::path newest = snapshot_path(2);
  for (const std::string& name : files(newest)) {
    const std::string good = file_bytes(newest / name);
    // Every byte of the manifest; of the others every region is a few bytes at least.
    const std::size_t stride = name == kManifestName ? 1 : 7;
    for (std::size_t i = 0; i < good.size(); i += stride) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
      put_file_bytes(newest / name, bad);
      ASSERT_THROW(load_snapshot(newest), CorruptFile) << name << ", byte " << i;
    }
    for (std::size_t bytes = 0; bytes < good.size(); bytes += 61) {
      put_file_bytes(newest / name, good.substr(0, bytes));
      ASSERT_THROW(verify_sharded(newest), CorruptFile) << name << ", " << bytes << " bytes left";
    }
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(resumed_step(), 1);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::ranges::count(log, '\n'), 1) << log;
    EXPECT_NE(log.find(name), std::string::npos) << log;
    std::filesystem::remove(newest / name);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(resumed_step(), 1) << name << " is gone";
    ::testing::internal::GetCapturedStderr();
    put_file_bytes(newest / name, good);
  }
  EXPECT_EQ(resumed_step(), 2);
}

TEST_F(ShardedSnapshotTest, AFileOfAnotherSaveIsNoPartOfIt) {
  write_all(save_of(1, 2));
  write_all(save_of(2, 2, "00000000000000bb"));
  // With its own manifest's entry made right, so that only what it holds tells.
  SnapshotManifest manifest = read_manifest(snapshot_path(2) / kManifestName);
  const std::filesystem::path foreign = snapshot_path(1) / "rank1-of-2-00000000000000aa.pt";
  std::filesystem::copy_file(foreign, snapshot_path(2) / manifest.files[1].name,
                             std::filesystem::copy_options::overwrite_existing);
  manifest.files[1].digest = digest_of(ReadableFile(foreign));
  put_file_bytes(snapshot_path(2) / kManifestName, manifest_text(manifest));
  EXPECT_NE(message_of<CorruptFile>([&] { load_snapshot(snapshot_path(2)); }).find("another save"),
            std::string::npos);
}

TEST_F(ShardedSnapshotTest, OnePartAloneIsRefused) {
  write_all(save_of(1, 2));
  const auto part = snapshot_path(1) / "rank0-of-2-00000000000000aa.pt";
  EXPECT_NE(message_of<UsageError>([&] { load_snapshot(part); }).find("name its directory"),
            std::string::npos);
}

TEST_F(ShardedSnapshotTest, AManifestThatLeadsElsewhereIsRefused) {
  for (const char* name : {"../x.pt", "/etc/passwd", "..", ""}) {
    const SnapshotManifest manifest{.save_id = "a", .files = {{.name = name, .digest = {}}}};
    EXPECT_THROW(parse_manifest(manifest_text(manifest), "read it"), CorruptFile) << name;
  }
  EXPECT_THROW(parse_manifest("", "read it"), CorruptFile);
  EXPECT_THROW(parse_manifest("{}", "read it"), CorruptFile);
}

// With the checksum that it has to have.
std::string sealed_manifest(const std::string& body) {
  const std::string text = body + ",\n \"checksum\": \"xxh3:";
  return text + xxh3_digits(text) + "\"\n}\n";
}

TEST(SnapshotManifest, RefusesNumbersThatAreNoIntegers) {
  const std::string good =
      manifest_text({.save_id = "a",
                     .files = {{.name = "f", .digest = {.size_bytes = 77, .xxh3 = ""}}},
                     .tensors = {{.name = "t", .file = 0, .dtype = "float32", .shape = {77}}}});
  const std::string body = good.substr(0, good.find(",\n \"checksum\""));
  parse_manifest(sealed_manifest(body), "read it");
  for (const std::string number : {"\"format\": 1", "\"epoch\": 0", "\"bytes\": 77", "   77"}) {
    const std::size_t at = body.find(number);
    ASSERT_NE(at, std::string::npos) << number << " in " << body;
    for (const char* const wrong : {"e37", ".5"}) {
      std::string changed_body = body;
      changed_body.insert(at + number.size(), wrong);
      EXPECT_THROW(parse_manifest(sealed_manifest(changed_body), "read it"), CorruptFile);
    }
  }
}

TEST(SnapshotManifest, TakesMemoryInProportionToItsText) {
  const auto repeated = [](const std::string& text) {
    std::string result;
    while (result.size() < 1'000'000) result += text;
    return result;
  };
  const std::string empty_manifest =
      "{\"format\":1,\"save_id\":\"\",\"epoch\":0,\"step\":0,\"world_size\":1,\"files\":[";
  for (const std::string& body :
       {repeated("["), repeated("{\"\":"), empty_manifest + repeated("0,") + "0]",
        empty_manifest + "],\"tensors\":[{\"name\":\"\",\"file\":0,\"dtype\":\"\",\"shape\":[" +
            repeated("0,") + "0]}]"}) {
    const std::string text = sealed_manifest(body);
    EXPECT_TRUE(fits_in(kAnyManifestBytes + kManifestBytesAByte * text.size(), [&] {
      parse_manifest(text, "read it");
    })) << body.substr(0, 20);
  }
}

TEST_F(ShardedSnapshotTest, AsynchronousItIsWholeAfterWaitOrAbsent) {
  SnapshotDirectory directory(path(), {.asynchronous_saves = true, .sharded_saves = true});
  for (std::int64_t step = 1; step <= 3; ++step) {
    directory.save(*net_, optimizer_, {.step = step, .extra = {{"best", at::full({3}, step)}}});
  }
  directory.wait();
  EXPECT_EQ(resumed_step(), 3);
  {
    const FullDisk full(3000);
    directory.save(*net_, optimizer_, {.step = 4});
    EXPECT_THROW(directory.save(*net_, optimizer_, {.step = 5}), SystemError);
  }
  EXPECT_EQ(resumed_step(), 3);
}

/// A process saves every step twice, and is killed at a random instant.
TEST_F(ShardedSnapshotTest, AKillAtAnyInstantLeavesTheLastOneWhole) {
  write_all(save_of(1, 2));
  const auto seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  std::int64_t saved = 1;
  for (int round = 0; round < 20; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t saver = ::fork();
    if (saver == 0) {
      SnapshotDirectory directory(path(), {.sharded_saves = true});
      for (std::int64_t save = 0;; ++save) {
        const std::int64_t step = saved + save / 2;
        directory.save(*net_, optimizer_, {.step = step, .extra = {{"best", at::full({3}, step)}}});
        if (::write(pipe_ends[1], &step, sizeof(step)) != sizeof(step)) ::_exit(1);
      }
    }
    ::close(pipe_ends[1]);
    ::poll(nullptr, 0, static_cast<int>(random() % 30));  // The random instant itself.
    ::kill(saver, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(saver, &status, 0), saver);
    ASSERT_TRUE(WIFSIGNALED(status));
    while (::read(pipe_ends[0], &saved, sizeof(saved)) == sizeof(saved)) {
    }
    ::close(pipe_ends[0]);
    ::testing::internal::CaptureStderr();
    const std::int64_t resumed = resumed_step();
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "one was passed over";
    ASSERT_GE(resumed, saved);
    ASSERT_LE(resumed, saved + 1);
    saved = resumed;
  }
}

}  // namespace
}  // namespace lockstep::testing
