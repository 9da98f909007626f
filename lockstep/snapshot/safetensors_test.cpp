#include "lockstep/snapshot/safetensors.h"

#include <cstring>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/memory_limit_testing.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/snapshot/internal/safetensors_header.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::testing {
namespace {

class SafetensorsTest : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return directory_.path() / "file.safetensors"; }

  void expect_same(const TensorDict& tensors) {
    save_safetensors(path(), tensors);
    const TensorDict read = read_safetensors(path()).tensors;
    ASSERT_EQ(read.size(), tensors.size());
    for (std::size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(read[i].first, tensors[i].first);
      EXPECT_TRUE(same_bits(read[i].second, tensors[i].second.contiguous())) << read[i].first;
    }
  }

  /// A file with this header, as it stands, and so many bytes behind it.
  void put(const std::string& header, std::size_t data_bytes) {
    const std::uint64_t size = header.size();
    std::string bytes(sizeof(size), '\0');
    std::memcpy(bytes.data(), &size, sizeof(size));
    put_file_bytes(path(), bytes + header + std::string(data_bytes, '\1'));
  }

  std::string refusal() {
    return message_of<CorruptFile>([&] { read_safetensors(path()); });
  }

  TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "safetensors-"};
};

TEST_F(SafetensorsTest, KeepEveryDtypeBitForBitInTheirOrder) {
  TensorDict tensors;
  for (const at::ScalarType dtype :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kUInt16, at::kUInt32,
        at::kUInt64, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat,
        at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    tensors.emplace_back(c10::toString(dtype), at::arange(7).to(dtype));
  }
  const double infinity = std::numeric_limits<double>::infinity();
  tensors.emplace_back("special", at::tensor({-0.0, infinity, -infinity, std::nan("1")}));
  expect_same(tensors);
}

TEST_F(SafetensorsTest, KeepEveryShapeAndTheValuesOfViews) {
  const at::Tensor base = at::arange(20);
  const at::Tensor complex = at::complex(at::ones({3}), at::ones({3}));
  expect_same({{"empty", at::empty({0})},
               {"empty.matrix", at::empty({3, 0, 2})},
               {"scalar", at::scalar_tensor(2.5)},
               {"transposed", at::arange(6).reshape({2, 3}).t()},
               {"base", base},
               {"alias", base},
               {"part", base.slice(0, 3, 20, 4)},
               {"expanded", at::ones({1}).expand({1000})},
               {"conjugate", complex.conj().resolve_conj()},
               {"odd", at::ones({3}, at::kByte)},
               {"needs grad", at::rand({123}).requires_grad_()},
               {"a \"name\" in \u00fcber UTF-8\n", at::ones({1})}});
  expect_same({});
}

TEST_F(SafetensorsTest, KeepTheMetadata) {
  save_safetensors(path(), {}, {{"format", "pt"}, {"note", "{\"quoted\": \"text\"}"}});
  EXPECT_EQ(read_safetensors(path()).metadata.at("note"), "{\"quoted\": \"text\"}");
}

TEST_F(SafetensorsTest, AreReadAsAStateDictWhateverTheirName) {
  save_safetensors(path(), {{"weight", at::arange(8)}});
  const std::filesystem::path renamed = directory_.path() / "weights";
  std::filesystem::copy(path(), renamed);
  for (const auto& file : {path(), renamed}) {
    EXPECT_TRUE(same_bits(read_state_dict(file).at(0).second, at::arange(8)));
  }
}

TEST_F(SafetensorsTest, WhatTheyCannotHoldIsRefusedByName) {
  for (const at::Tensor& tensor :
       {at::eye(3).to_sparse(), at::Tensor(), at::ones({2}, at::kComplexDouble)}) {
    const std::string message = message_of<UsageError>([&] {
      save_safetensors(path(), {{"embedding", tensor}});
    });
    EXPECT_NE(message.find("'embedding'"), std::string::npos) << message;
  }
  const at::Tensor one = at::ones({1});
  EXPECT_THROW(save_safetensors(path(), {{"a", one}, {"a", one}}), UsageError);
  EXPECT_THROW(save_safetensors(path(), {{"__metadata__", one}}), UsageError);
  EXPECT_THROW(save_safetensors(path(), {{"\xff", one}}), UsageError);
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(SafetensorsTest, AHeaderThatDoesNotFitItsDataIsRefused) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& at) {
    return concat("{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", at, "}");
  };
  const std::string good = one("F32", "[2]", "[0,8]");
  const auto repeated = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  put(concat("{\"a\":", one("F32", concat("[2", repeated(",1", 63), "]"), "[0,8]"), "}"), 8);
  EXPECT_EQ(refusal(), "no error");
  put(concat("{\"a\":", good, "}"), 8);
  EXPECT_EQ(refusal(), "no error");
  const std::vector<std::string> bad = {
      concat("{\"a\":", good, ",\"b\":", one("F32", "[2]", "[4,12]"), "}"),  // overlap
      concat("{\"a\":", good, ",\"b\":", good, "}"),                         // the same bytes
      concat("{\"a\":", good, ",\"a\":", one("F32", "[1]", "[8,12]"), "}"),  // one name
      concat("{\"a\":", good, ",\"b\":", one("U8", "[3]", "[9,12]"), "}"),   // a gap
      concat("{\"a\":", good, "}"),                                          // bytes left over
      concat("{\"a\":", one("F32", "[4]", "[0,16]"), "}"),                   // beyond the end
      concat("{\"a\":", one("F32", "[2]", "[0,12]"), "}"),                   // not its shape
      concat("{\"a\":", one("F32", "[3]", "[12,0]"), "}"),                   // backwards
      concat("{\"a\":", one("F32", "[-3]", "[0,12]"), "}"),
      concat("{\"a\":", one("F32", "[3.0]", "[0,12]"), "}"),
      concat("{\"a\":", one("F32", "[4611686018427387904,4]", "[0,12]"), "}"),  // 2^64
      concat("{\"a\":", one("F32", "[9223372036854775808]", "[0,12]"), "}"),
      concat("{\"a\":", one("U8", "[0,9223372036854775807,2]", "[0,0]"),
             ",\"b\":", one("F32", "[3]", "[0,12]"), "}"),
      concat("{\"a\":", one("F33", "[3]", "[0,12]"), "}"),
      concat("{\"a\":", one("F32", concat("[3", repeated(",1", 64), "]"), "[0,12]"), "}"),
      concat("{\"a\":", one("F32", "[3]", "[0]"), "}"),
      concat("{\"a\":", one("F32", "[3]", "[0,12,12]"), "}"),
      concat("{\"a\":", one("F32", "[[3]]", "[0,12]"), "}"),
      "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,12]}}",
      "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}",
      "{\"__metadata__\":{\"a\":1}}",
      "{\"__metadata__\":[]}",
      "{\"a\":7}",
      "[]",
      "",
      " {}",
      "{}{}",
      std::string(100'000, '['),
      "{\"a\":" + std::string(100'000, '{'),
  };
  for (const std::string& header : bad) {
    put(header, 12);
    const std::string message = refusal();
    EXPECT_EQ(message.rfind("read ", 0), 0u) << header.substr(0, 200) << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  put(concat("{\"a\":", one("F4", "[16]", "[0,8]"), "}"), 8);
  EXPECT_NE(message_of<UsageError>([&] { read_safetensors(path()); }).find("F4"),
            std::string::npos);
  put_file_bytes(path(), std::string(8, '\xff') + "{}");
  EXPECT_NE(refusal().find("is truncated"), std::string::npos);
}

// Headers of many short entries, which are tensors of no bytes or metadata, and of many dimensions.
TEST_F(SafetensorsTest, TakesMemoryInProportionToTheHeader) {
  std::string entries = "{";
  std::string metadata = "{\"__metadata__\":{";
  for (int i = 0; i < 20'000; ++i) {
    const char* const comma = i == 0 ? "" : ",";
    entries += concat(comma, "\"", i, "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}");
    metadata += concat(comma, "\"", i, "\":\"\"");
  }
  std::string shape = "{\"a\":{\"shape\":[0";
  for (int i = 0; i < 500'000; ++i) shape += ",1";
  for (const std::string& header :
       {entries + "}", metadata + "}}", shape + "],\"dtype\":\"U8\",\"data_offsets\":[0,0]}}",
        std::string(1'000'000, '[')}) {
    put(header, 0);
    EXPECT_TRUE(fits_in(kAnyHeaderBytes + kHeaderBytesAByte * header.size(), [&] {
      read_safetensors(path());
    })) << header.substr(0, 40);
  }
}

TEST_F(SafetensorsTest, NoDamageCrashesAndATruncationIsNoticed) {
  save_safetensors(
      path(),
      {{"weight", at::arange(8)}, {"flag", at::ones({3}, at::kBool)}, {"none", at::empty({0})}},
      {{"format", "pt"}});
  const std::string good = file_bytes(path());
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    put_file_bytes(path(), good.substr(0, bytes));
    EXPECT_THROW(read_safetensors(path()), CorruptFile) << bytes << " bytes left";
  }
  put_file_bytes(path(), good + '\0');
  EXPECT_THROW(read_safetensors(path()), CorruptFile);
  int refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const int bits : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ bits);
      put_file_bytes(path(), bad);
      try {
        read_safetensors(path());  // A digit of a name, or a number, may have changed.
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(SafetensorsTest, AFullDiskLeavesTheOldFile) {
  save_safetensors(path(), {{"weight", at::arange(8)}});
  const std::string old = file_bytes(path());
  {
    const FullDisk full(200);
    EXPECT_NE(message_of<SystemError>([&] {
                save_safetensors(path(), {{"weight", at::arange(400)}});
              }).find("file.safetensors"),
              std::string::npos);
  }
  EXPECT_EQ(file_bytes(path()), old);
}

}  // namespace
}  // namespace lockstep::testing
