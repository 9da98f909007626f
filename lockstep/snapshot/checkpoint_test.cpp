#include "lockstep/snapshot/checkpoint.h"

#include <fstream>
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/memory_limit_testing.h"
#include "lockstep/os/files/remove_tree.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/snapshot/checkpoint/checksum_list.h"
#include "lockstep/snapshot/checkpoint/distributed_metadata.h"
#include "lockstep/snapshot/checkpoint/stored_tensors.h"
#include "lockstep/snapshot/checkpoint/verify_checkpoint.h"
#include "lockstep/snapshot/internal/archive_writer.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/internal/small_net.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"
#include "lockstep/snapshot/pickle/pickle_writer.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/snapshot_directory.h"

namespace lockstep::testing {
namespace {

struct Form {
  const char* name;
  CheckpointFormat format;
  int shards;
};
const std::vector<Form> kForms{{"one.safetensors", CheckpointFormat::kSafetensors, 1},
                               {"safetensors1", CheckpointFormat::kShardedSafetensors, 1},
                               {"safetensors3", CheckpointFormat::kShardedSafetensors, 3},
                               {"dcp1", CheckpointFormat::kDistributed, 1},
                               {"dcp3", CheckpointFormat::kDistributed, 3},
                               {"one.pt", CheckpointFormat::kTorchSave, 1}};

/// What this process has read with read(2) and its like.
std::int64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string key;
  std::int64_t value = 0;
  while (io >> key >> value) {
    if (key == "rchar:") return value;
  }
  return -1;
}

at::Tensor box_of(const at::Tensor& tensor, const std::vector<std::int64_t>& begin,
                  const std::vector<std::int64_t>& sizes) {
  at::Tensor part = tensor;
  for (std::size_t i = 0; i < begin.size(); ++i) {
    part = part.narrow(static_cast<std::int64_t>(i), begin[i], sizes[i]);
  }
  return part.clone(at::MemoryFormat::Contiguous);
}

class CheckpointTest : public ::testing::Test {
 protected:
  std::filesystem::path path(const std::string& name) const { return directory_.path() / name; }

  void save_as(const Form& form, const TensorDict& tensors) {
    save_checkpoint(path(form.name), tensors, {.format = form.format, .shards = form.shards});
  }

  void expect_same(const CheckpointReader& reader, const TensorDict& tensors) {
    ASSERT_EQ(reader.tensors().size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const CheckpointTensor& found = reader.tensors()[i];
      EXPECT_EQ(found.name, tensors[i].first);
      EXPECT_TRUE(same_bits(reader.read(found.name), tensors[i].second.contiguous())) << found.name;
    }
  }

  TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "checkpoint-"};
};

TensorDict tensors_of_every_kind() {
  TensorDict tensors;
  for (const at::ScalarType dtype :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kUInt16, at::kUInt32,
        at::kUInt64, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat,
        at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e8m0fnu}) {
    tensors.emplace_back(c10::toString(dtype), at::arange(35).reshape({7, 5}).to(dtype));
  }
  tensors.emplace_back("scalar", at::scalar_tensor(2.5));
  tensors.emplace_back("empty", at::empty({0}));
  tensors.emplace_back("empty.matrix", at::empty({3, 0, 2}));
  tensors.emplace_back("transposed", at::arange(6).reshape({2, 3}).t());
  tensors.emplace_back("part", at::arange(20).slice(0, 3, 20, 4));
  tensors.emplace_back("a \"name\" in \u00fcber UTF-8\n", at::ones({1}));
  return tensors;
}

TEST_F(CheckpointTest, EachFormatKeepsEveryTensorBitForBit) {
  for (const Form& form : kForms) {
    save_as(form, tensors_of_every_kind());
    const CheckpointReader reader(path(form.name));
    EXPECT_EQ(reader.format(), form.format);
    expect_same(reader, tensors_of_every_kind());
    EXPECT_TRUE(form.format == CheckpointFormat::kTorchSave ||
                verify_checksum_list(path(form.name)));
  }
}

TEST_F(CheckpointTest, AnyPartOfATensorIsRead) {
  std::mt19937 random(3);
  const TensorDict tensors{{"matrix", at::arange(1200, at::kFloat).reshape({30, 40})},
                           {"cube", at::arange(360).reshape({5, 8, 9})},
                           {"transposed", at::arange(1200).reshape({30, 40}).t()},
                           {"vector", at::arange(17, at::kBFloat16)}};
  for (const Form& form : kForms) {
    save_as(form, tensors);
    const CheckpointReader reader(path(form.name));
    for (int round = 0; round < 50; ++round) {
      for (const auto& [name, tensor] : tensors) {
        std::vector<std::int64_t> begin;
        std::vector<std::int64_t> sizes;
        for (const std::int64_t size : tensor.sizes()) {
          begin.push_back(static_cast<std::int64_t>(random() % static_cast<unsigned>(size)));
          sizes.push_back(
              static_cast<std::int64_t>(random() % static_cast<unsigned>(size - begin.back() + 1)));
        }
        EXPECT_TRUE(same_bits(reader.read(name, begin, sizes), box_of(tensor, begin, sizes)))
            << form.name << " " << name << at::IntArrayRef(begin) << at::IntArrayRef(sizes);
      }
    }
  }
}

TEST_F(CheckpointTest, ARankReadsTheBytesOfItsShardsAlone) {
  // Columns are of 8 KB a row, so that they are read row by row.
  const TensorDict tensors{{"first", at::rand({512, 4096})}, {"second", at::rand({4096, 512})}};
  constexpr std::int64_t kShardBytes = 512 * 4096 * 4 / 4;
  for (const Form& form : kForms) {
    save_as(form, tensors);
    const std::int64_t before = bytes_read();
    const CheckpointReader reader(path(form.name));
    const std::int64_t opened = bytes_read() - before;
    EXPECT_LT(opened, 10'000) << form.name;
    for (const bool by_columns : {false, true}) {
      const std::vector<std::int64_t> begin =
          by_columns ? std::vector<std::int64_t>{0, 1024} : std::vector<std::int64_t>{128, 0};
      const std::vector<std::int64_t> sizes =
          by_columns ? std::vector<std::int64_t>{512, 1024} : std::vector<std::int64_t>{128, 4096};
      const std::int64_t begun = bytes_read();
      const at::Tensor shard = reader.read("first", begin, sizes);
      const std::int64_t taken = bytes_read() - begun;
      EXPECT_TRUE(same_bits(shard, box_of(tensors[0].second, begin, sizes)));
      EXPECT_GE(taken, kShardBytes) << form.name;
      EXPECT_LT(taken, kShardBytes + 10'000) << form.name;
    }
  }
}

TEST_F(CheckpointTest, ReadingAShardTakesItsMemoryAndABuffer) {
  const TensorDict tensors{{"weight", at::zeros({1024, 8192}).add_(1)}};  // 32 MB
  for (const Form& form : kForms) {
    save_as(form, tensors);
    EXPECT_TRUE(fits_in(20u << 20, [&] {
      const CheckpointReader reader(path(form.name));
      reader.read("weight", {256, 0}, {256, 8192});
      reader.read("weight", {0, 4096}, {1024, 2048});
      reader.read("weight", {0, 0}, {8192 / 8, 1});
    })) << form.name;
  }
}

TEST_F(CheckpointTest, ConvertingTakesTheMemoryOfABlockOfRows) {
  const TensorDict tensors{{"weight", at::zeros({5120, 16384}).add_(1)}};  // 320 MB
  save_checkpoint(path("source.safetensors"), tensors, {.format = CheckpointFormat::kSafetensors});
  for (const Form& form : kForms) {
    if (form.format == CheckpointFormat::kTorchSave) continue;
    EXPECT_TRUE(fits_in(160u << 20, [&] {
      convert_checkpoint(CheckpointReader(path("source.safetensors")), path("target"),
                         {.format = form.format, .shards = form.shards, .replace = true});
    })) << form.name;
    const CheckpointReader reader(path("target"));
    EXPECT_TRUE(at::equal(reader.read("weight", {5119, 0}, {1, 16384}), at::ones({1, 16384})));
    std::error_code error;
    remove_tree(path("target"), error);
  }
}

TEST_F(CheckpointTest, WeightsOfSnapshotsAreThoseOfTheModel) {
  SmallNet net;
  torch::optim::Adam optimizer(net->parameters());
  net->forward(at::ones({3, 4})).sum().backward();
  optimizer.step();
  save_snapshot(path("snapshot.pt"),
                {.model = state_dict(*net), .optimizer = optimizer_state_dict(optimizer)});
  SnapshotDirectory(path("run"), {.sharded_saves = true})
      .save(*net, optimizer, {.epoch = 1, .step = 2});
  for (const auto& [name, format] :
       {std::pair("snapshot.pt", CheckpointFormat::kSnapshot),
        {"run/snapshot-e0001-s00000002", CheckpointFormat::kShardedSnapshot}}) {
    const CheckpointReader reader(path(name));
    EXPECT_EQ(reader.format(), format);
    expect_same(reader, state_dict(*net));
    const CheckpointReader all(path(name), {.part = CheckpointPart::kAll});
    EXPECT_TRUE(same_bits(all.read("model.first.weight"), net->first->weight.detach()));
    EXPECT_GT(all.tensors().size(), 3 * net->parameters().size());
  }
}

TEST_F(CheckpointTest, AStateDictIsReadOfAnyFolder) {
  SmallNet net;
  for (const Form& form : kForms) {
    save_as(form, state_dict(*net));
    SmallNet other;
    load_state_dict(*other, read_state_dict(path(form.name)));
    EXPECT_TRUE(same_bits(other->second->weight.detach(), net->second->weight.detach()));
  }
}

TEST_F(CheckpointTest, WhatIsNotThereIsRefused) {
  save_as(kForms[0], {{"weight", at::ones({3, 4})}});
  const CheckpointReader reader(path(kForms[0].name));
  EXPECT_THROW(reader.read("bias"), UsageError);
  EXPECT_THROW(reader.read("weight", {0}, {3}), UsageError);
  EXPECT_THROW(reader.read("weight", {1, 0}, {3, 4}), UsageError);
  EXPECT_THROW(reader.read("weight", {0, 0}, {std::int64_t{1} << 40, 4}), UsageError);
  EXPECT_THROW(reader.read_into("weight", {0, 0}, at::empty({3, 4}, at::kHalf)), UsageError);
  const at::Tensor target = at::empty({3, 4});
  reader.read_into("weight", {0, 0}, target);
  EXPECT_TRUE(at::equal(target, at::ones({3, 4})));
}

TEST_F(CheckpointTest, WhatIsAtThePathStaysUnlessItIsReplaced) {
  for (const Form& form : kForms) {
    save_as(form, {{"a", at::ones({1})}});
    EXPECT_THROW(save_as(form, {{"b", at::ones({1})}}), UsageError);
    EXPECT_EQ(CheckpointReader(path(form.name)).tensors()[0].name, "a");
    save_checkpoint(path(form.name), {{"b", at::ones({1})}},
                    {.format = form.format, .shards = form.shards, .replace = true});
    EXPECT_EQ(CheckpointReader(path(form.name)).tensors()[0].name, "b");
    EXPECT_TRUE(form.format == CheckpointFormat::kTorchSave ||
                verify_checksum_list(path(form.name)));
  }
  EXPECT_THROW(
      save_checkpoint(path("dcp1"), {}, {.format = CheckpointFormat::kTorchSave, .replace = true}),
      UsageError);
  EXPECT_THROW(
      save_checkpoint(path("new.pt"), {}, {.format = CheckpointFormat::kTorchSave, .shards = 2}),
      UsageError);
}

TEST_F(CheckpointTest, AFullDiskLeavesWhatWasThere) {
  for (const Form& form : kForms) {
    save_as(form, {{"a", at::ones({1})}});
    {
      const FullDisk full(4000);
      EXPECT_THROW(save_checkpoint(path(form.name), {{"b", at::ones({4000})}},
                                   {.format = form.format, .shards = form.shards, .replace = true}),
                   SystemError)
          << form.name;
    }
    EXPECT_EQ(CheckpointReader(path(form.name)).tensors()[0].name, "a") << form.name;
    EXPECT_TRUE(form.format == CheckpointFormat::kTorchSave ||
                verify_checksum_list(path(form.name)));
  }
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    EXPECT_NE(entry.path().filename().native()[0], '.') << entry.path();
  }
}

TEST_F(CheckpointTest, WhatAFormatCannotHoldIsRefusedByName) {
  for (const Form& form : kForms) {
    const std::string message = message_of<UsageError>([&] {
      save_as(form, {{"embedding", at::eye(3).to_sparse()}});
    });
    EXPECT_NE(message.find("'embedding'"), std::string::npos) << message;
    EXPECT_THROW(save_as(form, {{"a", at::ones({1})}, {"a", at::ones({1})}}), UsageError);
    EXPECT_THROW(save_as(form, {{std::string(4097, 'a'), at::ones({1})}}), UsageError);
    EXPECT_FALSE(std::filesystem::exists(path(form.name)));
  }
}

TEST_F(CheckpointTest, TheNameOfTheMetadataIsNoTensorsInSafetensors) {
  for (const Form& form : kForms) {
    const bool is_safetensors = form.format == CheckpointFormat::kSafetensors ||
                                form.format == CheckpointFormat::kShardedSafetensors;
    const TensorDict tensors{{"a", at::ones({3})}, {"__metadata__", at::ones({2})}};
    if (!is_safetensors) {
      save_as(form, tensors);
      expect_same(CheckpointReader(path(form.name)), tensors);
      continue;
    }
    const std::string message = message_of<UsageError>([&] { save_as(form, tensors); });
    EXPECT_NE(message.find("'__metadata__'"), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(path(form.name)));
  }
}

TEST_F(CheckpointTest, FurtherFilesAreThereWithTheOthersOrNoneIs) {
  const TensorDict tensors{{"a", at::ones({3})}};
  const auto save_with = [&](CheckpointFormat format, const std::string& name) {
    save_checkpoint(path("folder"), tensors,
                    {.format = format, .extra_files = {{"config.json", "{}"}, {name, "x"}}});
  };
  for (const char* const name : {"../x", "", "..", "model.safetensors.index.json",
                                 "model-00001-of-00001.safetensors", "checksums.xxh3"}) {
    const std::string message =
        message_of<UsageError>([&] { save_with(CheckpointFormat::kShardedSafetensors, name); });
    EXPECT_NE(message.find("save checkpoint: "), std::string::npos) << message;
    EXPECT_TRUE(std::filesystem::is_empty(directory_.path())) << name;
  }
  EXPECT_THROW(save_with(CheckpointFormat::kTorchSave, "x"), UsageError);
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
  save_with(CheckpointFormat::kShardedSafetensors, "x");
  EXPECT_EQ(file_bytes(path("folder") / "config.json"), "{}");
  put_file_bytes(path("folder") / "config.json", "edited");
  EXPECT_TRUE(verify_checksum_list(path("folder")));
  expect_same(CheckpointReader(path("folder")), tensors);
}

TEST_F(CheckpointTest, ALineOfAChecksumListThatIsNoneIsRefused) {
  save_as(kForms[3], {{"a", at::ones({1})}});
  const std::filesystem::path list = checksum_list_path(path("dcp1"));
  const std::string good = file_bytes(list);
  for (const std::string& bad :
       {good.substr(0, good.size() - 1), good.substr(1), std::string("x\n"),
        std::string(32, 'a') + "  ../x\n", std::string(32, 'a') + "  \n", std::string("\n")}) {
    put_file_bytes(list, bad);
    EXPECT_THROW(verify_checksum_list(path("dcp1")), CorruptFile) << bad;
  }
  put_file_bytes(list, std::string(32, 'a') + "  __0_0.distcp\n");
  EXPECT_NE(
      message_of<CorruptFile>([&] { verify_checksum_list(path("dcp1")); }).find("__0_0.distcp"),
      std::string::npos);
}

TEST_F(CheckpointTest, TheChecksumsAreFoundByTheNameOfTheIndexAndBesideTheOnlyFile) {
  save_checkpoint(path("parts"), {{"a", at::ones({9})}, {"b", at::ones({9})}}, {.shards = 2});
  EXPECT_TRUE(verify_checksum_list(path("parts") / "model.safetensors.index.json"));
  std::filesystem::create_directory(path("one"));
  const std::filesystem::path only = path("one") / "model.safetensors";
  save_checkpoint(only, {{"a", at::ones({9})}}, {.format = CheckpointFormat::kSafetensors});
  EXPECT_TRUE(verify_checksum_list(path("one")));
  std::string bytes = file_bytes(only);
  bytes.back() ^= 1;
  put_file_bytes(only, bytes);
  EXPECT_THROW(verify_checksum_list(path("one")), CorruptFile);
}

TEST_F(CheckpointTest, NoDamageOfAFolderCrashesOrTakesMuchMemory) {
  save_as(kForms[4], {{"a", at::arange(8)}, {"b", at::ones({3}, at::kBool)}});
  for (const char* const name : {".metadata", "__1_0.distcp"}) {
    const std::string good = file_bytes(path("dcp3") / name);
    int refused = 0;
    for (std::size_t i = 0; i < good.size(); i += name[0] == '.' ? 1 : 3) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
      put_file_bytes(path("dcp3") / name, bad);
      try {
        const CheckpointReader reader(path("dcp3"));
        for (const CheckpointTensor& tensor : reader.tensors()) reader.read(tensor.name);
      } catch (const Error&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 50) << name;
    put_file_bytes(path("dcp3") / name, good);
  }
}

// Read whole, in either order of its dimensions: a part of a piece has no CRC.
TEST_F(CheckpointTest, AFlippedBitOfAPieceIsNoticed) {
  const at::Tensor values = at::arange(1200, at::kFloat).reshape({30, 40});
  const std::string bytes(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  for (const auto& [form, file] :
       {std::pair(kForms[3], "dcp1/__0_0.distcp"), {kForms[5], "one.pt"}}) {
    save_as(form, {{"weight", values}});
    std::string bad = file_bytes(path(file));
    bad[bad.find(bytes) + 1000] ^= 4;
    put_file_bytes(path(file), bad);
    const CheckpointReader reader(path(form.name));
    EXPECT_NE(message_of<CorruptFile>([&] { reader.read("weight"); }).find("CRC"),
              std::string::npos);
    const at::Tensor target = at::empty({40, 30}).t();
    EXPECT_NE(message_of<CorruptFile>([&] {
                reader.read_into("weight", {0, 0}, target);
              }).find("CRC"),
              std::string::npos);
  }
}

// A part of a piece has no CRC, so that who reads by parts verifies before.
TEST_F(CheckpointTest, AFlippedBitIsFoundInTheMemoryOfABuffer) {
  const TensorDict tensors{{"weight", at::arange(2'000'000, at::kFloat).reshape({1000, 2000})},
                           {"bias", at::ones({3})}};
  const at::Tensor& values = tensors[0].second;
  const std::string bytes(static_cast<const char*>(values.const_data_ptr()), 1000);
  for (const auto& [form, file] :
       {std::pair(kForms[3], "dcp1/__0_0.distcp"), {kForms[5], "one.pt"}}) {
    save_as(form, tensors);
    std::error_code error;
    std::filesystem::remove(checksum_list_path(path(form.name)), error);
    std::string content = file_bytes(path(file));
    // As other programs write it, without a checksum in the archive's comment.
    if (form.format == CheckpointFormat::kTorchSave) {
      content.resize(content.find("lockstep-xxh3:"));
      content.replace(content.size() - 2, 2, 2, '\0');
      put_file_bytes(path(file), content);
    }
    EXPECT_EQ(verify_checkpoint(CheckpointReader(path(form.name))), VerifiedBy::kCrc);
    content[content.find(bytes) + 5'000'000] ^= 4;
    put_file_bytes(path(file), content);
    const CheckpointReader reader(path(form.name));
    const std::string message = message_of<CorruptFile>([&] { verify_checkpoint(reader); });
    EXPECT_NE(message.find(path(file).string()), std::string::npos) << message;
    EXPECT_NE(message.find(form.format == CheckpointFormat::kTorchSave ? "'data/0'" : "'weight'"),
              std::string::npos)
        << message;
    EXPECT_TRUE(fits_in(4u << 20, [&] { verify_checkpoint(reader); }));
  }
}

TEST_F(CheckpointTest, APieceOfAnotherShapeIsFoundBeforeItIsRead) {
  save_as(kForms[3], {{"weight", at::ones({3, 4})}});
  std::filesystem::remove(checksum_list_path(path("dcp1")));
  const std::filesystem::path file = path("dcp1") / kDistributedMetadataName;
  DistributedMetadata metadata = parse_distributed_metadata(file_bytes(file), "input");
  metadata.tensors[0].shape = {4, 3};
  metadata.tensors[0].pieces[0].box.sizes = {4, 3};
  put_file_bytes(file, distributed_metadata_text(metadata));
  const std::string message =
      message_of<CorruptFile>([&] { verify_checkpoint(CheckpointReader(path("dcp1"))); });
  EXPECT_NE(message.find("'weight' has another dtype or shape"), std::string::npos) << message;
}

/// A file of torch.save with this pickle, and 4 bytes as storage "0".
std::string archive_of(const std::string& pickle) {
  std::string bytes;
  ArchiveWriter archive([&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
  });
  archive.add(kPickleRecord, pickle.data(), pickle.size());
  archive.add(concat(kStoragePrefix, 0), "1234", 4);
  archive.finish();
  return bytes;
}

std::string copies_of(const std::string& text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

/// A pickle of dicts in dicts, all with one key, and in the innermost one tensor of this number of
/// dimensions by as many numbers.
std::string nested_pickle(const std::string& key, std::size_t depth, std::size_t dimensions,
                          std::size_t tensors) {
  const std::string ones = "(" + copies_of("K\1", dimensions) + "t";
  PickleWriter text;
  text.op(PickleOpcode::kEmptyDict).string(key);
  std::string pickle = text.finish();
  pickle.back() = 'q';
  pickle += std::string("\0", 1) + copies_of(std::string("}h\0", 3), depth - 1) + "}(";
  pickle += std::string("K\0", 2) + "ctorch._utils\n_rebuild_tensor_v2\n((" +
            std::string("X\7\0\0\0storage", 12) + "ctorch\nFloatStorage\n" +
            std::string("X\1\0\0\0000X\3\0\0\0cpuK\1tQK\0", 20) + ones + ones +
            "\x89"
            "ccollections\nOrderedDict\n)RtRq\1";
  for (std::size_t i = 1; i < tensors; ++i) {
    pickle += std::string("M") + static_cast<char>(i % 256) + static_cast<char>(i / 256) + "h\1";
  }
  return pickle + "u" + copies_of("s", depth) + ".";
}

TEST_F(CheckpointTest, NamesAndShapesTakeMemoryInProportionToTheirPickle) {
  const auto refusal = [&](const std::string& pickle) {
    put_file_bytes(path("hostile.pt"), archive_of(pickle));
    EXPECT_TRUE(
        fits_in((48u << 20) + 512 * pickle.size(), [&] { CheckpointReader(path("hostile.pt")); }));
    try {
      CheckpointReader(path("hostile.pt"));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refusal(nested_pickle("key", 10, 3, 100)), "no error");
  EXPECT_EQ(refusal(nested_pickle(std::string(400, 'k'), 10, 1, 100)), "no error");
  EXPECT_NE(refusal(nested_pickle(std::string(20'000, 'k'), 58, 1, 300)).find("has 1160059 bytes"),
            std::string::npos);
  EXPECT_NE(refusal(nested_pickle(std::string(1'000'000, 'k'), 58, 1, 1)).find("bytes"),
            std::string::npos);
  EXPECT_NE(refusal(nested_pickle(std::string(4000, 'k'), 1, 1, 30'000)).find("too much memory"),
            std::string::npos);
  EXPECT_NE(refusal(nested_pickle("key", 1, 64, 60'000)).find("too much memory"),
            std::string::npos);
}

// Python's dict has both.
TEST_F(CheckpointTest, KeysThatGiveOneNameAreNamed) {
  c10::impl::GenericDict dict = make_dict();
  dict.insert(std::int64_t{0}, at::ones({2}));
  dict.insert("0", at::ones({3}));
  save(path("keys.pt"), dict);
  const std::string message = message_of<UsageError>([&] { CheckpointReader(path("keys.pt")); });
  EXPECT_NE(message.find("called '0'"), std::string::npos) << message;
}

// As Hugging Face writes them: programs that read safetensors tie weights themselves.
TEST_F(CheckpointTest, SafetensorsHaveTiedWeightsOnce) {
  const at::Tensor words = at::arange(12, at::kFloat).view({4, 3});
  const TensorDict tied{{"words", words},
                        {"other", words.clone()},
                        {"head", words.view({4, 3})},
                        {"turned", words.t()},
                        {"rows", words.narrow(0, 0, 2)},
                        {"none", words.narrow(0, 0, 0)},
                        {"nothing", words.narrow(0, 0, 0)}};
  TensorDict once = tied;
  once.erase(once.begin() + 2);
  save(path("tied.pt"), tied);
  const CheckpointReader source(path("tied.pt"));
  for (const CheckpointTensor& tensor : source.tensors()) {
    EXPECT_EQ(tensor.tied_to, tensor.name == "head" ? "words" : "") << tensor.name;
  }
  for (const Form& form : kForms) {
    const bool is_safetensors = form.format == CheckpointFormat::kSafetensors ||
                                form.format == CheckpointFormat::kShardedSafetensors;
    save_as(form, tied);
    convert_checkpoint(source, path(concat("of-", form.name)),
                       {.format = form.format, .shards = form.shards});
    for (const std::string name : {"", "of-"}) {
      std::vector<std::string> found;
      const CheckpointReader reader(path(name + form.name));
      for (const CheckpointTensor& tensor : reader.tensors()) found.push_back(tensor.name);
      std::vector<std::string> expected;
      for (const auto& [tensor_name, tensor] : is_safetensors ? once : tied) {
        expected.push_back(tensor_name);
        EXPECT_TRUE(same_bits(reader.read(tensor_name), tensor.contiguous())) << tensor_name;
      }
      std::ranges::sort(found);
      std::ranges::sort(expected);
      EXPECT_EQ(found, expected) << name << form.name;
    }
  }
}

// Of one number a tensor of any size can be made.
TEST_F(CheckpointTest, ATensorOfMoreBytesThanItsFileIsRefused) {
  save(path("expanded.pt"), TensorDict{{"a", at::ones({1}).expand({1'000'000})}});
  EXPECT_NE(message_of<UsageError>([&] { CheckpointReader(path("expanded.pt")); }).find("'a'"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
