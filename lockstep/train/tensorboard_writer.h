#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/record/internal/event_file.h"

namespace lockstep {

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
                             const EventFileOptions& options = {});

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
  void flush() { file_.flush(); }

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  EventFile file_;
};

}  // namespace lockstep
