#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep {

inline namespace internal {
class EventFile;
}

/// Options of TensorBoardWriter.
struct TensorBoardWriterOptions {
  /// First step of a resumed run: TensorBoard then hides the points at this step and later that
  /// older files in the folder hold. Unset: hides nothing.
  std::optional<std::int64_t> purge_step = std::nullopt;
  /// Longest time that added points stay in memory, if more are added; 64 KiB of them are written
  /// at once.
  std::chrono::milliseconds flush_interval = std::chrono::seconds(10);
};

/// Writes event files for TensorBoard (`tensorboard --logdir FOLDER`), without TensorFlow or
/// Protocol Buffers. Methods are those of torch.utils.tensorboard.SummaryWriter. Each writer
/// creates its own file in the folder. In a job, let one rank write.
///
/// ```cpp
/// TensorBoardWriter writer("runs/digits/tensorboard", {.purge_step = first_step});
/// writer.add_scalar("loss/train", loss, step);
/// ```
///
/// Threads: one at a time.
/// Errors: SystemError if the folder cannot be created or written, also from a later call (disk
/// full). UsageError for a tensor of another shape or dtype, before anything is written.
class TensorBoardWriter {
 public:
  explicit TensorBoardWriter(const std::filesystem::path& folder,
                             const TensorBoardWriterOptions& options = {});
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// Adds a scalar, stored as float32.
  void add_scalar(const std::string& tag, double value, std::int64_t step);

  /// Adds a text in Markdown.
  void add_text(const std::string& tag, const std::string& text, std::int64_t step);

  /// Adds a histogram of the tensor's values; values that are not finite are left out. Copies the
  /// tensor to the CPU as float64.
  void add_histogram(const std::string& tag, const at::Tensor& values, std::int64_t step);

  /// Adds an image: [channels, height, width] with 1, 3 or 4 channels, or [height, width] for gray.
  /// uint8, or floating point, clamped to [0, 1].
  void add_image(const std::string& tag, const at::Tensor& image, std::int64_t step);

  /// Adds a grid of images, [count, channels, height, width]: eight per row, two black pixels
  /// between them.
  void add_images(const std::string& tag, const at::Tensor& images, std::int64_t step);

  /// Writes everything added so far to the file. Without it, points are written after
  /// flush_interval, if more are added, and by the destructor.
  void flush();

  /// Path of this writer's file.
  const std::filesystem::path& path() const;

 private:
  const std::unique_ptr<EventFile> file_;
};

}  // namespace lockstep
