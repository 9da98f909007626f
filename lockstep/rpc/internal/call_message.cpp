#include "lockstep/rpc/internal/call_message.h"

#include "lockstep/base/internal/concat.h"

namespace lockstep::rpc::inline internal {
namespace {

// First of every message, so that one of another version, or of another program, is refused.
constexpr std::uint32_t kRequestMark = 0x3151534c;  // "LSQ1"
constexpr std::uint32_t kAnswerMark = 0x3141534c;   // "LSA1"
constexpr std::size_t kLongestFunction = 256;

void write_tag(const std::optional<AutogradTag>& tag, ByteWriter& bytes) {
  bytes.put(static_cast<std::uint8_t>(tag.has_value()));
  if (!tag) return;
  bytes.put(tag->context);
  bytes.put(tag->message);
}

std::optional<AutogradTag> read_tag(ByteReader& bytes) {
  if (bytes.take<std::uint8_t>() == 0) return std::nullopt;
  AutogradTag tag;
  tag.context = bytes.take<std::int64_t>();
  tag.message = bytes.take<std::int64_t>();
  return tag;
}

void take_mark(ByteReader& bytes, std::uint32_t mark) {
  if (bytes.take<std::uint32_t>() != mark) {
    throw UsageError("it is no message of this version of Lockstep's RPC");
  }
}

void check_at_end(const ByteReader& bytes) {
  if (bytes.left() > 0) throw UsageError(concat("it has ", bytes.left(), " bytes too many"));
}

std::string take_name(ByteReader& bytes) {
  const std::string_view name = bytes.take_text();
  if (name.size() > kLongestFunction)
    throw UsageError(concat("a name of ", name.size(), " letters"));
  return std::string(name);
}

}  // namespace

std::string too_large(std::size_t size_bytes, std::int64_t max_message_bytes) {
  return concat("a message of ", size_bytes, " bytes; max_message_bytes is ", max_message_bytes);
}

MessageData write_request(const CallRequest& request, ValueContext context) {
  if (request.function.size() > kLongestFunction) {
    throw UsageError(concat("a function's name has at most ", kLongestFunction, " letters"));
  }
  context.keeps_graph = request.autograd.has_value();
  MessageData parcel;
  ByteWriter bytes(parcel.bytes);
  bytes.put(kRequestMark);
  bytes.put(request.kind);
  bytes.put(request.from);
  write_tag(request.autograd, bytes);
  write_key(request.rref, bytes);
  write_key(request.object, bytes);
  bytes.put(request.holder);
  bytes.put_text(request.function);
  bytes.put(static_cast<std::uint32_t>(request.arguments.size()));
  for (const c10::IValue& argument : request.arguments) write_value(argument, bytes, context);
  parcel.tensors = std::move(context.tensors);
  return parcel;
}

CallRequest read_request(const MessageData& parcel, ValueContext context) {
  context.tensors = parcel.tensors;
  ByteReader bytes({parcel.bytes.data(), parcel.bytes.size()});
  take_mark(bytes, kRequestMark);
  CallRequest request;
  request.kind = bytes.take<CallRequest::Kind>();
  if (request.kind > CallRequest::Kind::kHello) {
    throw UsageError(concat("a request of kind ", static_cast<int>(request.kind)));
  }
  request.from = bytes.take<std::int32_t>();
  request.autograd = read_tag(bytes);
  request.rref = read_key(bytes);
  request.object = read_key(bytes);
  request.holder = bytes.take<std::int32_t>();
  request.function = take_name(bytes);
  const auto count = bytes.take<std::uint32_t>();
  if (count > bytes.left()) throw UsageError(concat("it promises ", count, " arguments"));
  for (std::uint32_t i = 0; i < count; ++i) {
    request.arguments.push_back(read_value(bytes, context));
  }
  check_at_end(bytes);
  return request;
}

MessageData write_answer(const CallReply& answer, ValueContext context) {
  context.keeps_graph = answer.autograd.has_value();
  MessageData parcel;
  ByteWriter bytes(parcel.bytes);
  bytes.put(kAnswerMark);
  write_tag(answer.autograd, bytes);
  bytes.put_text(answer.error_type);
  bytes.put_text(answer.error);
  write_value(answer.value, bytes, context);
  parcel.tensors = std::move(context.tensors);
  return parcel;
}

CallReply read_answer(const MessageData& parcel, ValueContext context) {
  context.tensors = parcel.tensors;
  ByteReader bytes({parcel.bytes.data(), parcel.bytes.size()});
  take_mark(bytes, kAnswerMark);
  CallReply answer;
  answer.autograd = read_tag(bytes);
  answer.error_type = take_name(bytes);
  answer.error = bytes.take_text();
  answer.value = read_value(bytes, context);
  check_at_end(bytes);
  return answer;
}

}  // namespace lockstep::rpc::inline internal
