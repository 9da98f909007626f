#include "lockstep/rpc/internal/value_codec.h"

#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/internal/log.h"
#include "lockstep/base/internal/memory_limit_testing.h"
#include "lockstep/rpc/internal/call_message.h"
#include "lockstep/rpc/internal/gradient_message.h"

namespace lockstep::rpc {
namespace {

c10::IValue nested(int depth) {
  c10::IValue value = std::int64_t{7};
  for (int i = 0; i < depth; ++i) value = c10::ivalue::Tuple::create({value});
  return value;
}

CallRequest request_with(std::vector<c10::IValue> arguments) {
  return {.function = "f", .arguments = std::move(arguments)};
}

CallRequest sample_request() {
  c10::Dict<std::string, c10::List<std::int64_t>> dict;
  dict.insert("sizes", c10::List<std::int64_t>({1, 2, 3}));
  const auto sparse =
      at::sparse_coo_tensor(at::tensor({0, 2}, at::kLong).unsqueeze(0), at::ones({2, 3}), {4, 3});
  CallRequest request = request_with({{},
                                      true,
                                      std::int64_t{5},
                                      2.5,
                                      std::string("text"),
                                      at::arange(6),
                                      at::zeros({100, 100}),
                                      sparse,
                                      dict,
                                      std::vector<double>{1, 2},
                                      std::vector<std::string>{"a", "b"},
                                      nested(3)});
  request.autograd = AutogradTag{1, 2};
  return request;
}

std::string error_of(const MessageData& parcel) {
  try {
    read_request(parcel, {});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(CallMessage, ComesBackAsItWas) {
  const CallRequest sent = sample_request();
  const MessageData parcel = write_request(sent, {});
  EXPECT_EQ(parcel.tensors.size(), 1U) << "only the large one goes beside the bytes";
  const CallRequest back = read_request(parcel, {});
  EXPECT_EQ(back.function, "f");
  EXPECT_EQ(back.autograd->message, 2);
  ASSERT_EQ(back.arguments.size(), sent.arguments.size());
  for (std::size_t i = 0; i < sent.arguments.size(); ++i) {
    EXPECT_EQ(*back.arguments[i].type(), *sent.arguments[i].type()) << i;
  }
  EXPECT_TRUE(
      at::equal(back.arguments[7].toTensor().to_dense(), sent.arguments[7].toTensor().to_dense()));
}

// c10's type of such a value cannot be asked for.
TEST(CallMessage, UndefinedTensorsComeBackFromContainers) {
  c10::List<std::tuple<at::Tensor, std::int64_t>> pairs;
  pairs.push_back({at::Tensor(), 3});
  const CallRequest sent = request_with({std::vector<at::Tensor>{at::ones({1}), at::Tensor()},
                                         pairs, c10::ivalue::Tuple::create({at::Tensor()})});
  const CallRequest back = read_request(write_request(sent, {}), {});
  ASSERT_EQ(back.arguments.size(), 3U);
  EXPECT_TRUE(back.arguments[0].toTensorVector()[0].defined());
  EXPECT_FALSE(back.arguments[0].toTensorVector()[1].defined());
  const c10::IValue pair = back.arguments[1].toListRef()[0];
  EXPECT_FALSE(pair.toTupleRef().elements()[0].toTensor().defined());
  EXPECT_EQ(pair.toTupleRef().elements()[1].toInt(), 3);
  EXPECT_FALSE(back.arguments[2].toTupleRef().elements()[0].toTensor().defined());
}

TEST(CallMessage, EachShorterOneIsRefused) {
  const MessageData whole = write_request(sample_request(), {});
  for (std::size_t size = 0; size < whole.bytes.size(); ++size) {
    MessageData cut = whole;
    cut.bytes.resize(size);
    EXPECT_NE(error_of(cut), "") << size;
  }
  MessageData longer = whole;
  longer.bytes.push_back(0);
  EXPECT_EQ(error_of(longer), "it has 1 bytes too many");
}

TEST(CallMessage, AnyBytesAreReadOrRefused) {
  std::random_device device;
  const auto seed = device();
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  const MessageData whole = write_request(sample_request(), {});
  for (int i = 0; i < 20'000; ++i) {
    MessageData changed = whole;
    for (unsigned flips = random() % 4 + 1; flips > 0; --flips) {
      changed.bytes[random() % changed.bytes.size()] = static_cast<char>(random());
    }
    try {
      read_request(changed, {});
    } catch (const UsageError&) {
    }
  }
}

TEST(CallMessage, DeepAndPromisingOnesAreRefused) {
  EXPECT_THROW(write_request(request_with({nested(40)}), {}), UsageError);
  // Two thousand tuples, each the only element of the one before.
  MessageData deep = write_request(request_with({nested(1)}), {});
  std::vector<char> bytes(deep.bytes.begin(), deep.bytes.end() - 14);
  for (int i = 0; i < 2000; ++i)
    bytes.insert(bytes.end(), deep.bytes.end() - 14, deep.bytes.end() - 9);
  deep.bytes = bytes;
  EXPECT_EQ(error_of(deep), "values nested deeper than 32");
  MessageData many = write_request(request_with({std::vector<std::int64_t>{}}), {});
  std::fill(many.bytes.end() - 4, many.bytes.end(), '\xff');
  EXPECT_EQ(error_of(many), "it promises 4294967295 elements and has 0 bytes");
  MessageData without = write_request(request_with({at::zeros({100, 100})}), {});
  without.tensors.clear();
  EXPECT_EQ(error_of(without), "it names tensor 0 of 0");
}

// Values that are short as bytes, and as many of them as there is space for.
TEST(CallMessage, TakesMemoryInProportionToItsBytes) {
  const std::vector<c10::IValue> short_values = {
      {},
      at::Tensor(),
      at::zeros({}, at::kChar),
      at::zeros({}, at::kHalf).requires_grad_(),
      at::zeros({0}, at::kHalf),
      c10::ivalue::Tuple::create({}),
      c10::impl::GenericDict(c10::IntType::get(), c10::StringType::get()),
      c10::impl::GenericList(c10::OptionalType::create(c10::IntType::get())),
      c10::impl::GenericList(c10::OptionalType::create(
          c10::ListType::create(c10::OptionalType::create(c10::IntType::get())))),
      c10::impl::GenericList(c10::TupleType::create({c10::IntType::get(), c10::IntType::get()})),
      std::string(),
      std::string(30, 'a'),
      std::vector<std::int64_t>{},
  };
  for (const c10::IValue& value : short_values) {
    const MessageData parcel =
        write_request(request_with(std::vector<c10::IValue>(100'000, value)), {});
    EXPECT_TRUE(fits_in(kAnyValueBytes + kValueBytesAByte * parcel.bytes.size(),
                        [&] { read_request(parcel, {}); }))
        << parcel.bytes.size() << " bytes of " << value.tagKind();
  }
}

TEST(CallMessage, SparseTensorsLieWithinTheirSizes) {
  const auto sparse =
      at::sparse_coo_tensor(at::tensor({5}, at::kLong).unsqueeze(0), at::ones({1}), {8});
  MessageData parcel = write_request(request_with({sparse}), {});
  EXPECT_EQ(error_of(parcel), "");
  const std::string bytes(parcel.bytes.begin(), parcel.bytes.end());
  const auto index = bytes.find(std::string("\5\0\0\0\0\0\0\0", 8));
  ASSERT_NE(index, std::string::npos);
  parcel.bytes[index] = 8;
  EXPECT_NE(error_of(parcel), "");
  std::fill_n(parcel.bytes.begin() + static_cast<std::ptrdiff_t>(index), 8, '\xff');
  EXPECT_NE(error_of(parcel), "");
}

TEST(GradientMessage, OnlyTheOneFormIsRead) {
  const std::string global = "ctorch.jit._pickle\nbuild_tensor_from_id\n";
  const std::string whole = std::string("\x80\x02(", 3) + global + std::string("q\0(K\0tRq\1", 9) +
                            std::string("h\0(K\1tRq\2", 9) + std::string("h\1", 2) +
                            "K\5M\1\2\x88t.";
  const GradientMessage message = read_gradient_message(whole);
  EXPECT_EQ(message.tensors, (std::vector<std::size_t>{0, 1, 0}))
      << "the first once more, by its number";
  EXPECT_EQ(message.context, 5);
  EXPECT_EQ(message.message, 513);
  EXPECT_TRUE(message.retain_graph);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(read_gradient_message(whole.substr(0, size)), UsageError) << size;
  }
  std::string other = whole;
  other.replace(other.find("build_tensor_from_id"), 20, "os.system_os.system_");
  EXPECT_THROW(read_gradient_message(other), UsageError);
  EXPECT_THROW(read_gradient_message(whole + "."), UsageError);
  EXPECT_EQ(read_cleanup_message("\x80\2K\7."), 7);
  EXPECT_THROW(read_cleanup_message("\x80\2(t."), UsageError);
}

}  // namespace
}  // namespace lockstep::rpc
