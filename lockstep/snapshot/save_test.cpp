#include "lockstep/snapshot/save.h"

#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"

namespace lockstep::testing {
namespace {

class SavedFile : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return directory_.path() / "file.pt"; }

  TensorDict round_trip(const TensorDict& tensors) {
    save(path(), tensors);
    return tensor_dict(load(path()), "round trip");
  }

  void expect_same(const TensorDict& tensors) {
    const TensorDict read = round_trip(tensors);
    ASSERT_EQ(read.size(), tensors.size());
    for (std::size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(read[i].first, tensors[i].first);
      EXPECT_TRUE(same_bits(read[i].second, tensors[i].second)) << read[i].first;
    }
  }

  TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "pickle-archive-"};
};

TEST_F(SavedFile, KeepsEveryDtypeBitForBit) {
  TensorDict tensors;
  for (const at::ScalarType dtype :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
        at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
    tensors.emplace_back(c10::toString(dtype), (at::arange(7) - 3).to(dtype));
  }
  const double infinity = std::numeric_limits<double>::infinity();
  tensors.emplace_back("special", at::tensor({-0.0, infinity, -infinity, std::nan("1")}));
  expect_same(tensors);
}

TEST_F(SavedFile, ANoteStandsBesideTheValues) {
  const TensorDict tensors = {{"a", at::ones({2})}};
  save(path(), tensors);
  EXPECT_EQ(read_note(path()), "");
  save(path(), tensors, {.note = "of run 7"});
  EXPECT_EQ(read_note(path()), "of run 7");
  EXPECT_EQ(tensor_dict(load(path()), "load").size(), 1U);
  put_file_bytes(path(), "no archive");
  EXPECT_THROW(read_note(path()), CorruptFile);
}

TEST_F(SavedFile, KeepsEveryShape) {
  expect_same({{"empty", at::empty({0})},
               {"empty.matrix", at::empty({3, 0, 2})},
               {"scalar", at::scalar_tensor(2.5)},
               {"transposed", at::arange(6).reshape({2, 3}).t()},
               {"strided", at::arange(20).slice(0, 3, 20, 4)},
               {"expanded", at::ones({1}).expand({1000})},
               {"channels last", at::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
               {"large", at::rand({123457})}});
}

TEST_F(SavedFile, TensorsThatShareMemoryShareItAgain) {
  const at::Tensor base = at::arange(10);
  TensorDict read = round_trip({{"base", base}, {"part", base.slice(0, 2, 5)}});
  read[1].second.fill_(-1);
  EXPECT_EQ(read[0].second[3].item().toLong(), -1);
}

TEST_F(SavedFile, TensorsThatShareMemoryAsDifferentDtypesKeepTheirs) {
  const at::Tensor floats = at::rand({4});
  const at::Tensor complex = at::complex(at::ones({3}), at::zeros({3}));
  expect_same({{"floats", floats},
               {"bits", floats.view(at::kInt)},
               {"complex", complex},
               {"parts", at::view_as_real(complex)}});
}

TEST_F(SavedFile, WritesConjugateAndNegativeViewsAsTheirValues) {
  const at::Tensor complex = at::complex(at::ones({3}), at::ones({3}));
  const TensorDict read = round_trip({{"conj", complex.conj()}, {"neg", at::imag(complex.conj())}});
  EXPECT_TRUE(at::equal(read[0].second, complex.conj().resolve_conj()));
  EXPECT_TRUE(at::equal(read[1].second, -at::ones({3})));
}

TEST_F(SavedFile, KeepsContainersAndNumbers) {
  c10::impl::GenericDict dict = make_dict();
  c10::impl::GenericList list = make_list();
  for (const std::int64_t value : {0L, 255L, 256L, 65536L, -1L, 1L << 40, -(1L << 62)})
    list.push_back(value);
  list.push_back(1e-300);
  list.push_back(true);
  list.push_back(c10::IValue());
  list.push_back(std::string("naïve\0text", 11));
  dict.insert_or_assign("list", list);
  dict.insert_or_assign(std::int64_t{7}, c10::ivalue::Tuple::create(0.9, 0.999));
  save(path(), dict);
  const c10::IValue read = load(path());
  EXPECT_EQ(find_value(read, "list").toListRef(), list.vec());
  EXPECT_EQ(read.toGenericDict().at(std::int64_t{7}).toTupleRef().elements()[1].toDouble(), 0.999);
}

TEST_F(SavedFile, RefusesTensorsThatFilesCannotHold) {
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("model", tensor_dict_value({{"embedding", at::eye(3).to_sparse()}}));
  const std::string message = message_of<UsageError>([&] { save(path(), dict); });
  EXPECT_NE(message.find("'model.embedding'"), std::string::npos) << message;
  EXPECT_THROW(round_trip({{"undefined", at::Tensor()}}), UsageError);
  EXPECT_THROW(round_trip({{"float8", at::ones({2}).to(at::kFloat8_e5m2)}}), UsageError);
}

TEST_F(SavedFile, EveryFlippedBitIsNoticed) {
  round_trip({{"weight", at::arange(8)}});
  const std::string good = file_bytes(path());
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    put_file_bytes(path(), bad);
    EXPECT_THROW(load(path(), {.checksum_required = true}), Error) << "byte " << i;
  }
}

TEST_F(SavedFile, EveryTruncationIsNoticed) {
  round_trip({{"weight", at::arange(8)}});
  const std::string good = file_bytes(path());
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    put_file_bytes(path(), good.substr(0, bytes));
    EXPECT_THROW(load(path(), {.checksum_required = true}), CorruptFile) << bytes << " bytes left";
    EXPECT_THROW(load(path()), CorruptFile);
  }
  put_file_bytes(path(), good + '\0');
  EXPECT_THROW(load(path()), CorruptFile);
}

/// The archive as another program would have left it: without our comment.
std::string without_checksum(std::string bytes) {
  bytes.resize(bytes.size() - 46);
  bytes[bytes.size() - 2] = 0;
  return bytes;
}

TEST_F(SavedFile, FilesOfOtherProgramsAreReadOnlyOnRequest) {
  const TensorDict tensors{{"weight", at::arange(8)}};
  round_trip(tensors);
  put_file_bytes(path(), without_checksum(file_bytes(path())));
  EXPECT_NE(message_of<UsageError>([&] {
              load(path(), {.checksum_required = true});
            }).find("another program"),
            std::string::npos);
  const auto read = tensor_dict(load(path()), "");
  EXPECT_TRUE(same_bits(read[0].second, tensors[0].second));
}

TEST_F(SavedFile, WithoutChecksumTheRecordsCrcGuardsTheTensors) {
  round_trip({{"weight", at::arange(8)}});
  const std::string good = without_checksum(file_bytes(path()));
  int refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    put_file_bytes(path(), bad);
    try {
      const auto read = tensor_dict(load(path()), "");
      // Padding, times and the like mean nothing.
      ASSERT_TRUE(same_bits(read.at(0).second, at::arange(8))) << "byte " << i;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
}

TEST_F(SavedFile, AFullDiskIsNamedAndLeavesTheOldFile) {
  round_trip({{"weight", at::arange(8)}});
  const std::string old = file_bytes(path());
  const c10::IValue larger =
      tensor_dict_value({{"weight", at::arange(400)}, {"bias", at::ones({9})}});
  std::string message;
  for (std::size_t bytes = 0; bytes < 5000; bytes += 37) {
    const FullDisk full(bytes);
    message = message_of<SystemError>([&] { save(path(), larger); });
    if (message == "no error") {
      EXPECT_GT(bytes, 3200u);
      break;
    }
    ASSERT_NE(message.find("file.pt"), std::string::npos) << message;
    ASSERT_EQ(file_bytes(path()), old);
    ASSERT_EQ(std::distance(std::filesystem::directory_iterator(directory_.path()), {}), 1);
  }
  EXPECT_EQ(message, "no error");
}

}  // namespace
}  // namespace lockstep::testing
