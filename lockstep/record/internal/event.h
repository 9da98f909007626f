#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// TensorFlow's Event messages (event.proto, summary.proto), as bytes. Pure.
namespace lockstep::inline internal {

struct EventTime {
  double wall_seconds = 0;
  std::int64_t step = 0;
};

/// A distribution of values, as TensorBoard shows it.
struct Histogram {
  double least = 0;
  double most = 0;
  std::int64_t count = 0;
  double sum = 0;
  double sum_of_squares = 0;
  /// counts[i] values are below limits[i] and not below limits[i - 1].
  std::vector<double> limits = {};
  std::vector<double> counts = {};
};

/// A histogram in TensorFlow's bins, each 10 % wider than the one before, on both sides of 0;
/// merges runs of empty bins. Ignores infinite values and NaN. Pure.
Histogram make_histogram(std::span<const double> values);

/// Pixels [height, width, channels] of one byte per channel: 1 grey, 3 RGB, 4 RGBA.
struct ImagePixels {
  std::int64_t width = 0;
  std::int64_t height = 0;
  int channels = 3;
  std::span<const std::uint8_t> bytes = {};
};

/// Encodes an image as a PNG file. Pure.
/// Errors: UsageError for one without pixels, of more than 2^28 bytes, or with another number of
/// channels.
std::string encode_png(const ImagePixels& image);

/// The first event of a file.
std::string version_event(const EventTime& time);
/// A run resumes at this step: TensorBoard ignores later events of the runs before.
std::string restart_event(const EventTime& time);
std::string scalar_event(const EventTime& time, const std::string& tag, double value);
/// Text in Markdown. Appends "/text_summary" to the tag, as torch.utils.tensorboard does.
std::string text_event(const EventTime& time, const std::string& tag, const std::string& text);
std::string histogram_event(const EventTime& time, const std::string& tag,
                            const Histogram& histogram);
std::string image_event(const EventTime& time, const std::string& tag, const ImagePixels& image);

/// An event as a record of the file: length, checksum of the length, event, checksum of the event.
std::string framed_record(const std::string& event);

}  // namespace lockstep::inline internal
