#include "lockstep/snapshot/checkpoint/distributed_metadata.h"

#include <cstring>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/memory_limit_testing.h"
#include "lockstep/snapshot/checkpoint/safetensors_index.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"

namespace lockstep::testing {
namespace {

DistributedMetadata two_tensors() {
  return {.files = {"__0_0.distcp", "__1_0.distcp"},
          .tensors = {{.name = "weight",
                       .path = {"model", "weight"},
                       .dtype = at::kFloat,
                       .shape = {5, 3},
                       .pieces = {{{{0, 0}, {3, 3}}, 0, 0, 1600}, {{{3, 0}, {2, 3}}, 1, 0, 1500}}},
                      {.name = "step",
                       .path = {"step"},
                       .dtype = at::kFloat8_e4m3fn,
                       .shape = {},
                       .pieces = {{{{}, {}}, 0, 1600, 1200}}},
                      {.name = "large",
                       .path = {"a", "b", "large"},
                       .dtype = at::kBFloat16,
                       .shape = {std::int64_t{3} << 32},
                       .pieces = {{{{0}, {std::int64_t{3} << 32}},
                                   1,
                                   std::uint64_t{5} << 32,
                                   std::uint64_t{7} << 32}}}}};
}

DistributedMetadata parsed(const DistributedMetadata& metadata) {
  return parse_distributed_metadata(distributed_metadata_text(metadata), "input");
}

std::string metadata_refusal(const DistributedMetadata& metadata) {
  return message_of<CorruptFile>([&] { parsed(metadata); });
}

TEST(DistributedMetadata, IsReadAsItWasWritten) {
  EXPECT_EQ(parsed(two_tensors()), two_tensors());
  EXPECT_EQ(parsed({}), DistributedMetadata());
}

TEST(DistributedMetadata, PiecesThatDoNotTileTheirTensorAreRefused) {
  const auto with = [](const std::function<void(DistributedTensor&)>& change) {
    DistributedMetadata metadata = two_tensors();
    change(metadata.tensors[0]);
    return metadata_refusal(metadata);
  };
  EXPECT_NE(with([](auto& t) { t.pieces.pop_back(); }).find("overlap or leave gaps"),
            std::string::npos);
  EXPECT_NE(with([](auto& t) {
              t.pieces[1].box = {{2, 0}, {2, 3}};
            }).find("overlap or leave gaps"),
            std::string::npos);
  EXPECT_NE(with([](auto& t) { t.pieces[1].box.sizes[0] = 3; }).find("lies outside"),
            std::string::npos);
  EXPECT_NE(with([](auto& t) { t.pieces[1].box.begin = {3}; }).find("lies outside"),
            std::string::npos);
  EXPECT_NE(with([](auto& t) {
              t.shape = {std::int64_t{1} << 61, 8};
            }).find("larger than any"),
            std::string::npos);
  EXPECT_NE(with([](auto& t) { t.pieces[0].size_bytes = 35; }).find("more bytes than its place"),
            std::string::npos);
  EXPECT_NE(with([](auto& t) { t.pieces[1].file = 0; }).find("overlap at byte 0"),
            std::string::npos);
}

TEST(DistributedMetadata, FilesElsewhereAreRefused) {
  for (const std::string& name :
       {std::string("../x"), std::string("/etc/passwd"), std::string(), std::string("."),
        std::string(".."), std::string("a/b"), std::string("a\0b", 3)}) {
    DistributedMetadata metadata = two_tensors();
    metadata.files[0] = name;
    EXPECT_EQ(metadata_refusal(metadata).find("read input: '"), 0u) << name;
  }
}

TEST(DistributedMetadata, OtherClassesAreRefusedByName) {
  std::string text = distributed_metadata_text(two_tensors());
  const std::string known = "torch.serialization\n_get_layout\n";
  text.replace(text.find(known), known.size(), "os\nsystem\n");
  EXPECT_NE(message_of<UsageError>([&] {
              parse_distributed_metadata(text, "input");
            }).find("'os.system'"),
            std::string::npos);
}

TEST(DistributedMetadata, NoDamageCrashes) {
  const std::string good = distributed_metadata_text(two_tensors());
  int refused = 0;
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_THROW(parse_distributed_metadata(good.substr(0, bytes), "input"), Error);
  }
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const int bits : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ bits);
      try {
        parse_distributed_metadata(bad, "input");  // A letter of a name may have changed.
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 5000);
}

TEST(DistributedMetadata, TakesMemoryInProportionToItsText) {
  DistributedMetadata many = two_tensors();
  for (int i = 0; i < 3000; ++i) {
    many.tensors.push_back({.name = concat("t", i),
                            .path = {concat("t", i)},
                            .dtype = at::kByte,
                            .shape = {1},
                            .pieces = {{{{0}, {1}}, 0, 10000 + 2000 * std::uint64_t(i), 1200}}});
  }
  std::string shared = distributed_metadata_text({});
  const std::string empty_dict = "}(u";
  // 20,000 tensors that are one object with a list of 20,000 pieces.
  std::string chunks = "(";
  const std::string module = "torch.distributed.checkpoint.metadata\n";
  for (int i = 0; i < 20000; ++i) chunks += "h\1";
  std::string tensors = std::string("}(X\1\0\0\0a", 8) + "c" + module +
                        "TensorStorageMetadata\n)\x81}(" + std::string("X\6\0\0\0chunks", 11) +
                        "]" + chunks + "eubq\2";
  for (int i = 0; i < 20000; ++i) tensors += concat(std::string("X\5\0\0\0", 5), 10000 + i, "h\2");
  tensors += "u";
  const std::size_t at = shared.find(empty_dict);
  ASSERT_NE(at, std::string::npos);
  shared.replace(at, empty_dict.size(), tensors);
  shared.insert(2, concat("c", module, "ChunkStorageMetadata\n)\x81q\1", "0"));
  for (const std::string& text : {distributed_metadata_text(many), shared,
                                  std::string("\x80\2") + std::string(2'000'000, ')'),
                                  std::string("\x80\2") + std::string(2'000'000, '}')}) {
    EXPECT_TRUE(fits_in(kAnyDistributedBytes + kDistributedBytesAByte * text.size(), [&] {
      parse_distributed_metadata(text, "input");
    })) << text.size();
  }
}

/// So many names of protocol 4, of one module and one class that are in the text once.
std::string shared_names(const std::string& module, int count) {
  std::string text("\x80\4X\0\0\0\0\x94\x8c\x08Metadata\x94", 19);
  const auto bytes = static_cast<std::uint32_t>(module.size());
  std::memcpy(text.data() + 3, &bytes, sizeof(bytes));
  text.insert(7, module);
  for (int i = 0; i < count; ++i) text += std::string("h\0h\1\x93", 5);
  return text + ".";
}

TEST(DistributedMetadata, NamesThatShareLongTextsAreRefused) {
  const std::string many = shared_names("torch.distributed." + std::string(100'000, 'a'), 20'000);
  EXPECT_TRUE(fits_in(kAnyDistributedBytes + kDistributedBytesAByte * many.size(),
                      [&] { parse_distributed_metadata(many, "input"); }));
  const std::string refusal =
      message_of<UsageError>([&] { parse_distributed_metadata(many, "input"); });
  EXPECT_NE(refusal.find("of 100026 bytes"), std::string::npos) << refusal;
  EXPECT_LT(refusal.size(), 400u);
  const std::string shortest = shared_names("torch.distributed." + std::string(170, 'a'), 200'000);
  EXPECT_TRUE(fits_in(kAnyDistributedBytes + kDistributedBytesAByte * shortest.size(),
                      [&] { parse_distributed_metadata(shortest, "input"); }));
}

std::string index_refusal(const std::string& text) {
  return message_of<CorruptFile>([&] { parse_safetensors_index(text, "input"); });
}

TEST(SafetensorsIndex, IsReadAsItWasWritten) {
  const SafetensorsIndex index{.total_bytes = 7,
                               .files = {{"b", "2.safetensors"}, {"a \"\n", "1.safetensors"}}};
  EXPECT_EQ(parse_safetensors_index(safetensors_index_text(index), "input").files, index.files);
  EXPECT_TRUE(parse_safetensors_index(R"({"metadata":{"a":[{"weight_map":1}]},"x":null,
                                          "weight_map":{}})",
                                      "input")
                  .files.empty());
}

TEST(SafetensorsIndex, WhatIsNoIndexIsRefused) {
  for (const std::string name : {"../x", "/x", "", ".", "..", "a/b", "a\\u0000b"}) {
    EXPECT_EQ(
        index_refusal(concat("{\"weight_map\":{\"a\":\"", name, "\"}}")).find("read input: '"), 0u)
        << name;
  }
  for (const std::string text :
       {"", "[]", "7", "\"a\"", "{}", "{\"weight_map\":7}", "{\"weight_map\":[]}",
        "{\"weight_map\":{\"a\":1}}", "{\"weight_map\":{\"a\":{}}}", "{\"weight_map\":{\"a\":[]}}",
        "{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", "{\"weight_map\":{},\"weight_map\":{}}",
        "{\"weight_map\":{\"a\":\"x\"",
        "{\"x\":[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]],\"weight_map\":{}}"}) {
    EXPECT_EQ(index_refusal(text).find("read input: "), 0u) << text << ": " << index_refusal(text);
  }
}

TEST(SafetensorsIndex, TakesMemoryInProportionToItsText) {
  std::string many = "{\"weight_map\":{";
  for (int i = 0; i < 100'000; ++i) many += concat(i == 0 ? "" : ",", "\"", i, "\":\"a\"");
  std::string other = "{\"weight_map\":{},\"metadata\":[";
  for (int i = 0; i < 1'000'000; ++i) other += "0,";
  for (const std::string& text :
       {many + "}}", other + "0]}", std::string(1'000'000, '['), std::string(1'000'000, '{')}) {
    EXPECT_TRUE(fits_in(kAnyIndexBytes + kIndexBytesAByte * text.size(), [&] {
      parse_safetensors_index(text, "input");
    })) << text.substr(0, 40);
  }
}

}  // namespace
}  // namespace lockstep::testing
