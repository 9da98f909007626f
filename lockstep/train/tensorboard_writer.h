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

struct TensorBoardWriterOptions {
  /// Where a run goes on that had come further, or may have: what files before this one have of
  /// this step and later ones TensorBoard then leaves out. Unset: nothing of it.
  std::optional<std::int64_t> purge_step = std::nullopt;
  /// What was added is written when so much time has passed since something last was, or 64 KiB
  /// are there.
  std::chrono::milliseconds flush_interval = std::chrono::seconds(10);
};

/// Writes what TensorBoard shows (`tensorboard --logdir FOLDER`), without TensorFlow or Protocol
/// Buffers. Methods are those of torch.utils.tensorboard.SummaryWriter. Each writer has a file of
/// its own in the folder; a run that goes on in the folder of one that had come further says so:
///
///   TensorBoardWriter writer("runs/digits/tensorboard", {.purge_step = first_step});
///   writer.add_scalar("loss/train", loss, step);
///
/// In a job, one rank writes. Threads: one at a time. Errors: SystemError when the folder cannot be
/// made or written, also in a later call (disk full); UsageError for a tensor of another shape or
/// dtype, before anything of it is written.
class TensorBoardWriter {
 public:
  explicit TensorBoardWriter(const std::filesystem::path& folder,
                             const TensorBoardWriterOptions& options = {});
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// As float32, as TensorBoard has it.
  void add_scalar(const std::string& tag, double value, std::int64_t step);

  /// Markdown.
  void add_text(const std::string& tag, const std::string& text, std::int64_t step);

  /// How the tensor's numbers are spread; those that are not finite are left out. Copies the tensor
  /// to the CPU as float64.
  void add_histogram(const std::string& tag, const at::Tensor& values, std::int64_t step);

  /// Channels × height × width, or height × width for grey, of 1, 3 or 4 channels: uint8, or
  /// floating-point numbers from 0 to 1, beyond which they are cut off.
  void add_image(const std::string& tag, const at::Tensor& image, std::int64_t step);

  /// Count × channels × height × width: side by side, eight a row, two black pixels between them.
  void add_images(const std::string& tag, const at::Tensor& images, std::int64_t step);

  /// What was added is in the file when it returns. Otherwise it is within some ten seconds, where
  /// more is added, and at the writer's end.
  void flush();

  const std::filesystem::path& path() const;

 private:
  const std::unique_ptr<EventFile> file_;
};

}  // namespace lockstep
