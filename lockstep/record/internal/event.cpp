#include "lockstep/record/internal/event.h"

#include <bit>
#include <cstdint>

#include <boost/crc.hpp>

#include "lockstep/record/internal/proto_message.h"

// Numbers of fields are those of tensorboard/compat/proto.
namespace lockstep::inline internal {
namespace {

constexpr int kSummaryOfEvent = 5;
constexpr int kValueOfSummary = 1;
constexpr int kTagOfValue = 1;

ProtoMessage event_at(const EventTime& time) {
  return ProtoMessage().add_double(1, time.wall_seconds).add_integer(2, time.step);
}

std::string summary_event(const EventTime& time, const ProtoMessage& value) {
  const ProtoMessage summary = ProtoMessage().add_message(kValueOfSummary, value);
  return event_at(time).add_message(kSummaryOfEvent, summary).bytes();
}

// CRC-32C, rotated and added to, so that the checksum of bytes that hold a checksum is no accident.
std::uint32_t masked_crc32c(const std::string& bytes) {
  constexpr std::uint32_t kAllBits = 0xFFFFFFFF;
  constexpr std::uint32_t kMaskDelta = 0xA282EAD8;
  boost::crc_optimal<32, 0x1EDC6F41, kAllBits, kAllBits, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return std::rotr(static_cast<std::uint32_t>(crc.checksum()), 15) + kMaskDelta;
}

}  // namespace

std::string version_event(const EventTime& time) {
  constexpr int kFileVersion = 3;
  return event_at(time).add_bytes(kFileVersion, "brain.Event:2").bytes();
}

std::string restart_event(const EventTime& time) {
  constexpr int kSessionLog = 7;
  constexpr int kStatus = 1;
  constexpr int kStart = 1;
  return event_at(time)
      .add_message(kSessionLog, ProtoMessage().add_integer(kStatus, kStart))
      .bytes();
}

std::string scalar_event(const EventTime& time, const std::string& tag, double value) {
  constexpr int kSimpleValue = 2;
  return summary_event(time, ProtoMessage()
                                 .add_bytes(kTagOfValue, tag)
                                 .add_float(kSimpleValue, static_cast<float>(value)));
}

std::string text_event(const EventTime& time, const std::string& tag, const std::string& text) {
  constexpr int kString = 7;  // DataType::DT_STRING
  const ProtoMessage plugin = ProtoMessage().add_bytes(1, "text");
  const ProtoMessage shape = ProtoMessage().add_message(2, ProtoMessage().add_integer(1, 1));
  const ProtoMessage tensor =
      ProtoMessage().add_integer(1, kString).add_message(2, shape).add_bytes(8, text);
  return summary_event(time, ProtoMessage()
                                 .add_bytes(kTagOfValue, tag + "/text_summary")
                                 .add_message(9, ProtoMessage().add_message(1, plugin))
                                 .add_message(8, tensor));
}

std::string histogram_event(const EventTime& time, const std::string& tag,
                            const Histogram& histogram) {
  constexpr int kHisto = 5;
  const ProtoMessage histo = ProtoMessage()
                                 .add_double(1, histogram.least)
                                 .add_double(2, histogram.most)
                                 .add_double(3, static_cast<double>(histogram.count))
                                 .add_double(4, histogram.sum)
                                 .add_double(5, histogram.sum_of_squares)
                                 .add_doubles(6, histogram.limits)
                                 .add_doubles(7, histogram.counts);
  return summary_event(time, ProtoMessage().add_bytes(kTagOfValue, tag).add_message(kHisto, histo));
}

std::string image_event(const EventTime& time, const std::string& tag, const ImagePixels& image) {
  constexpr int kImage = 4;
  const ProtoMessage encoded = ProtoMessage()
                                   .add_integer(1, image.height)
                                   .add_integer(2, image.width)
                                   .add_integer(3, image.channels)
                                   .add_bytes(4, encode_png(image));
  return summary_event(time,
                       ProtoMessage().add_bytes(kTagOfValue, tag).add_message(kImage, encoded));
}

std::string framed_record(const std::string& event) {
  std::string record;
  append_little_endian(record, static_cast<std::uint64_t>(event.size()));
  append_little_endian(record, masked_crc32c(record));
  record += event;
  append_little_endian(record, masked_crc32c(event));
  return record;
}

}  // namespace lockstep::inline internal
