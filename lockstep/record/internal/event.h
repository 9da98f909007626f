#pragma once

#include <cstdint>
#include <string>

#include "lockstep/record/internal/histogram.h"
#include "lockstep/record/internal/png_image.h"

/// TensorFlow's Event messages (event.proto, summary.proto), as bytes. Pure.
namespace lockstep::inline internal {

struct EventTime {
  double wall_seconds = 0;
  std::int64_t step = 0;
};

/// What an event file begins with.
std::string version_event(const EventTime& time);
/// A run goes on: of those before it, what was written from this step on does not count.
std::string restart_event(const EventTime& time);
std::string scalar_event(const EventTime& time, const std::string& tag, double value);
/// Markdown. The tag gets "/text_summary", as by torch.utils.tensorboard.
std::string text_event(const EventTime& time, const std::string& tag, const std::string& text);
std::string histogram_event(const EventTime& time, const std::string& tag,
                            const Histogram& histogram);
std::string image_event(const EventTime& time, const std::string& tag, const ImagePixels& image);

/// As it stands in the file: length, checksum of that, the event, checksum of it.
std::string framed_record(const std::string& event);

}  // namespace lockstep::inline internal
