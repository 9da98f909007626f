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

/// How values are spread, as TensorBoard shows it.
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

/// In TensorFlow's bins, each a tenth wider than the one before, on both sides of 0; runs of empty
/// ones are made one. Values that are not finite are left out. Pure.
Histogram make_histogram(std::span<const double> values);

/// Rows from the top, pixels from the left, a byte a channel: 1 grey, 3 red, green and blue, 4 with
/// opacity.
struct ImagePixels {
  std::int64_t width = 0;
  std::int64_t height = 0;
  int channels = 3;
  std::span<const std::uint8_t> bytes = {};
};

/// The image as a PNG file. Pure. Errors: UsageError for one without pixels, of more than 2^28
/// bytes or another number of channels.
std::string encode_png(const ImagePixels& image);

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
