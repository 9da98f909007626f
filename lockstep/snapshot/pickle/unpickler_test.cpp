#include "lockstep/snapshot/pickle/unpickler.h"

#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/memory_limit_testing.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"

namespace lockstep::testing {
namespace {

using std::string_literals::operator""s;

at::Tensor test_storage(const std::string&, std::uint64_t bytes) {
  if (bytes > 4096) throw CorruptFile("larger than its record");
  return at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte);
}

c10::IValue read(const std::string& pickle) {
  return unpickle(pickle, test_storage, "test.pt");
}

// Pieces of pickles.
std::string text(const std::string& value) {
  return "X"s + static_cast<char>(value.size()) + "\0\0\0"s + value;
}
std::string storage(int count) {
  return "(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "K" +
         static_cast<char>(count) + "tQ";
}
/// A tensor of two dimensions over a storage of 12 floats.
std::string tensor(int offset, int rows, int columns, int row_stride, int column_stride) {
  const auto byte = [](int value) { return "K"s + static_cast<char>(value); };
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage(12) + byte(offset) + byte(rows) +
         byte(columns) + "\x86" + byte(row_stride) + byte(column_stride) +
         "\x86\x89"
         "ccollections\nOrderedDict\n)RtR";
}

TEST(Unpickler, ReadsTensorsWithinTheirStorage) {
  EXPECT_EQ(read("\x80\x02" + tensor(0, 3, 4, 4, 1) + ".").toTensor().sizes(),
            at::IntArrayRef({3, 4}));
  EXPECT_EQ(read("\x80\x02" + tensor(12, 0, 4, 4, 1) + ".").toTensor().numel(), 0);
}

TEST(Unpickler, RefusesTensorsThatReachBeyondTheirStorage) {
  EXPECT_THROW(read("\x80\x02" + tensor(1, 3, 4, 4, 1) + "."), CorruptFile);
  EXPECT_THROW(read("\x80\x02" + tensor(0, 3, 5, 4, 1) + "."), CorruptFile);
  EXPECT_THROW(read("\x80\x02" + tensor(0, 2, 4, 200, 1) + "."), CorruptFile);
  EXPECT_THROW(read("\x80\x02" + tensor(13, 0, 4, 4, 1) + "."), CorruptFile);
}

// As the milestones of Python's MultiStepLR are.
TEST(Unpickler, ReadsACounterAsADict) {
  const c10::IValue read_value = read("\x80\x02" + "ccollections\nCounter\n}K\x05K\x02s\x85R."s);
  ASSERT_TRUE(read_value.isGenericDict());
  EXPECT_EQ(read_value.toGenericDict().at(std::int64_t{5}).toInt(), 2);
  EXPECT_THROW(read("ccollections\nCounter\nK\x05\x85R."), CorruptFile);
}

TEST(Unpickler, NamesWhatItRefuses) {
  const std::string attack =
      "\x80\x02"
      "cposix\nsystem\n" +
      text("true") + "\x85R.";
  const std::string message = message_of<UsageError>([&] { read(attack); });
  EXPECT_NE(message.find("'posix.system'"), std::string::npos) << message;
  EXPECT_NE(message.find("test.pt"), std::string::npos) << message;
  EXPECT_THROW(read("\x80\x02"
                    "cbuiltins\neval\n."),
               UsageError);
  EXPECT_THROW(read("\x80\x02"
                    "ctorch\nQInt8Storage\n."),
               UsageError);
}

TEST(Unpickler, RefusesWhatIsNoPickle) {
  for (const std::string& bad : {""s,
                                 "\x80\x05N."s,
                                 "N"s,
                                 "."s,
                                 "("s + "."s,
                                 "\x85."s,
                                 "Na."s,
                                 "]Na"s,
                                 "}Ns."s,
                                 "q\1."s,
                                 "h\1."s,
                                 "X\xff\xff\xff\xff."s,
                                 "X\5\0\0\0abc"s,
                                 "\x8a\x09"
                                 "123456789."s,
                                 "}(NNu."s,
                                 "Nb."s,
                                 "NQ."s,
                                 "ccollections\nOrderedDict\n."s,
                                 storage(12) + ".",
                                 "ctorch"s,
                                 "\xff."s,
                                 "\x80\x02"
                                 "ccollections\nOrderedDict\nN\x85R."s}) {
    EXPECT_THROW(read(bad), CorruptFile) << ::testing::PrintToString(bad);
  }
}

TEST(Unpickler, RefusesContainersWithoutEnd) {
  EXPECT_THROW(read("]q\1h\1a."), CorruptFile) << "a list that contains itself";
  EXPECT_THROW(read(std::string(1000, ']') + std::string(999, 'a') + "."), CorruptFile);
  // A list of two of the list of two of …, 60 deep: 2^60 values.
  std::string doubling = "]q" + std::string(1, '\0');
  for (char level = 0; level < 60; ++level) {
    doubling += "](h"s + level + "h"s + level + "eq"s + static_cast<char>(level + 1);
  }
  EXPECT_THROW(read(doubling + "."), CorruptFile);
}

std::string repeated(const std::string& piece, std::size_t times) {
  std::string result;
  for (std::size_t i = 0; i < times; ++i) result += piece;
  return result;
}

/// Of text.
std::string half_a_megabyte() {
  return "X\0\0\x08\0"s + std::string(std::size_t{1} << 19, 'a');
}

/// What a pickle of n bytes may take, as unpickler.h has it.
std::uint64_t bound(const std::string& pickle) {
  return (16u << 20) + 256 * pickle.size();
}

TEST(Unpickler, TakesMemoryInProportionToThePickle) {
  const std::string long_text = half_a_megabyte();
  const std::string in_list = "](";
  const std::string rebuild = "ctorch._utils\n_rebuild_tensor_v2\nq\1(" + storage(12) + "K\0"s;
  const std::string hooks = "\x89" + "ccollections\nOrderedDict\n)Rtq\2R"s;
  const std::string again = repeated("h\1h\2R", 100'000);
  const std::vector<std::string> pickles = {
      // One string in 50,000 places; a dict of a thousand entries, and a tuple, in 1,900.
      in_list + long_text + "q\1" + repeated("h\1", 50'000) + "e.",
      in_list + "}(" + repeated("K\1N", 1000) + "uq\1" + repeated("h\1", 1900) + "e.",
      in_list + "(" + repeated("N", 1000) + "tq\1" + repeated("h\1", 1900) + "e.",
      // The same dict's counters.
      in_list + "}(" + repeated("K\1N", 1000) + "uq\1" + "ccollections\nCounter\nq\2" +
          repeated("h\2h\1\x85R", 20'000) + "e.",
      // A tensor for a few bytes each; then each of a million dimensions.
      in_list + rebuild + "K\1\x85K\1\x85" + hooks + again + "e.",
      "(" + repeated("K\1", 1'000'000) + "tq\3" + in_list + rebuild + "h\3h\3" + hooks + again +
          "e.",
      // As many values as there are bytes.
      in_list + repeated("}", 500'000) + "e.",
      in_list + repeated("N", 1'000'000) + "e.",
      in_list + repeated(text("a"), 200'000) + "e.",
  };
  for (const std::string& pickle : pickles) {
    EXPECT_TRUE(fits_in(bound(pickle), [&] { read(pickle); }))
        << "a pickle of " << pickle.size() << " bytes that begins with "
        << ::testing::PrintToString(pickle.substr(0, 16));
  }
}

TEST(Unpickler, RefusesWhatUnfoldsToTooManyBytes) {
  const std::string long_text = half_a_megabyte();
  const auto mentioned = [&](std::size_t times) {
    return read("](" + long_text + "q\1" + repeated("h\1", times) + "e.");
  };
  EXPECT_EQ(mentioned(100).toListRef().size(), 101u);
  EXPECT_NE(message_of<CorruptFile>([&] { mentioned(1'000); }).find("too many bytes"),
            std::string::npos);
  const auto counters = [&](std::size_t times) {
    return read("](}(" + repeated("K\1N", 1000) + "uq\1" + "ccollections\nCounter\nq\2" +
                repeated("h\2h\1\x85R", times) + "e.");
  };
  EXPECT_NE(message_of<CorruptFile>([&] { counters(20'000); }).find("counters have too many items"),
            std::string::npos);
}

/// Mutations of a real pickle end in an error or a value, never in a crash: run it with the address
/// sanitizer for the full meaning.
TEST(Unpickler, SurvivesMutations) {
  std::string seed = "\x80\x02}q\1(" + text("weight") + "q\2" + tensor(0, 3, 4, 4, 1) + "q\3" +
                     text("bias") + "h\3" + text("betas") + "G\x3f\xe0\0\0\0\0\0\0"s + "K\1\x86" +
                     text("groups") + "](K\1J\1\2\3\4\x8a\2\1\2Neu.";
  ASSERT_EQ(read(seed).toGenericDict().size(), 4u);
  std::mt19937 random(20240229);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  int values = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string mutated = seed;
    for (std::size_t change = 0; change <= below(4); ++change) {
      const std::size_t at = below(mutated.size());
      switch (below(4)) {
        case 0:
          mutated[at] = static_cast<char>(below(256));
          break;
        case 1:
          mutated[at] = seed[below(seed.size())];
          break;
        case 2:
          mutated.erase(at, 1 + below(8));
          break;
        default:
          mutated.insert(at, seed.substr(below(seed.size()), 1 + below(16)));
      }
      if (mutated.empty()) mutated = ".";
    }
    try {
      read(mutated);
      ++values;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(values, 100) << "the mutations are too coarse to get past the first check";
  EXPECT_LT(values, 19000);
}

}  // namespace
}  // namespace lockstep::testing
