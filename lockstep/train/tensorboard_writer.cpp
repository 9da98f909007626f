#include "lockstep/train/tensorboard_writer.h"

#include <algorithm>
#include <span>

#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/record/internal/event_file.h"
#include "lockstep/record/internal/wall_seconds.h"

namespace lockstep {
namespace {

EventTime now_at(std::int64_t step) {
  return {.wall_seconds = wall_seconds(), .step = step};
}

[[noreturn]] void refuse_image(const char* what, const std::string& tag, const at::Tensor& tensor,
                               const char* shape) {
  throw UsageError(concat(what, " '", tag, "': a tensor of shape ", tensor.sizes(), " and dtype ",
                          tensor.scalar_type(), "; give ", shape,
                          " with 1, 3 or 4 channels, uint8 or floating-point from 0 to 1"));
}

bool has_pixels(const at::Tensor& tensor, std::int64_t channels) {
  const bool is_known_dtype =
      tensor.scalar_type() == at::kByte || at::isFloatingType(tensor.scalar_type());
  return is_known_dtype && tensor.numel() > 0 && (channels == 1 || channels == 3 || channels == 4);
}

// A byte a channel, on the CPU.
at::Tensor in_bytes(const at::Tensor& image) {
  const at::Tensor here = image.detach().cpu();
  if (here.scalar_type() == at::kByte) return here;
  return here.to(at::kFloat).nan_to_num(0).clamp(0, 1).mul(255).round().to(at::kByte);
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder,
                                     const TensorBoardWriterOptions& options)
    : file_(std::make_unique<EventFile>(
          folder, EventFileOptions{.purge_step = options.purge_step,
                                   .flush_interval = options.flush_interval})) {}

TensorBoardWriter::~TensorBoardWriter() = default;

void TensorBoardWriter::flush() {
  file_->flush();
}

const std::filesystem::path& TensorBoardWriter::path() const {
  return file_->path();
}

void TensorBoardWriter::add_scalar(const std::string& tag, double value, std::int64_t step) {
  file_->add(scalar_event(now_at(step), tag, value));
}

void TensorBoardWriter::add_text(const std::string& tag, const std::string& text,
                                 std::int64_t step) {
  file_->add(text_event(now_at(step), tag, text));
}

void TensorBoardWriter::add_histogram(const std::string& tag, const at::Tensor& values,
                                      std::int64_t step) {
  if (!values.defined() || values.is_complex() || !values.has_storage()) {
    throw UsageError(
        concat("add_histogram '", tag, "': give a dense tensor of numbers, not complex ones"));
  }
  const at::Tensor here = values.detach().to(at::kCPU, at::kDouble).contiguous();
  const std::span<const double> numbers(here.const_data_ptr<double>(),
                                        static_cast<std::size_t>(here.numel()));
  file_->add(histogram_event(now_at(step), tag, make_histogram(numbers)));
}

void TensorBoardWriter::add_image(const std::string& tag, const at::Tensor& image,
                                  std::int64_t step) {
  constexpr const char* kShape = "channels x height x width";
  if (!image.defined()) throw UsageError(concat("add_image '", tag, "': an undefined tensor"));
  const at::Tensor channels_first = image.dim() == 2 ? image.unsqueeze(0) : image;
  if (channels_first.dim() != 3 || !has_pixels(image, channels_first.size(0))) {
    refuse_image("add_image", tag, image, kShape);
  }
  const at::Tensor pixels = in_bytes(channels_first).permute({1, 2, 0}).contiguous();
  file_->add(image_event(now_at(step), tag,
                         {.width = pixels.size(1),
                          .height = pixels.size(0),
                          .channels = static_cast<int>(pixels.size(2)),
                          .bytes = {pixels.const_data_ptr<std::uint8_t>(),
                                    static_cast<std::size_t>(pixels.numel())}}));
}

void TensorBoardWriter::add_images(const std::string& tag, const at::Tensor& images,
                                   std::int64_t step) {
  constexpr const char* kShape = "count x channels x height x width";
  constexpr std::int64_t kImagesPerRow = 8;
  constexpr std::int64_t kGap = 2;
  if (!images.defined()) throw UsageError(concat("add_images '", tag, "': an undefined tensor"));
  if (images.dim() != 4 || !has_pixels(images, images.size(1))) {
    refuse_image("add_images", tag, images, kShape);
  }
  const at::Tensor bytes = in_bytes(images);
  const std::int64_t count = bytes.size(0);
  const std::int64_t height = bytes.size(2);
  const std::int64_t width = bytes.size(3);
  const std::int64_t columns = std::min(count, kImagesPerRow);
  const std::int64_t rows = (count + columns - 1) / columns;
  at::Tensor grid = at::zeros(
      {bytes.size(1), rows * (height + kGap) - kGap, columns * (width + kGap) - kGap}, at::kByte);
  for (std::int64_t i = 0; i < count; ++i) {
    grid.narrow(1, i / columns * (height + kGap), height)
        .narrow(2, i % columns * (width + kGap), width)
        .copy_(bytes[i]);
  }
  add_image(tag, grid, step);
}

}  // namespace lockstep
