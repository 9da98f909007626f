// Writes what Python then reads: event files and CSV, of known values.
//
//   record_worker events|csv FOLDER FIRST_STEP END_STEP [purge]
#include <cmath>
#include <cstdlib>
#include <string>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/program/run_main.h"
#include "lockstep/record/internal/csv_file.h"
#include "lockstep/train/tensorboard_writer.h"

namespace record_worker {
namespace {

struct Steps {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

void write_events(const std::string& folder, const Steps& steps, bool purge) {
  lockstep::TensorBoardWriterOptions options;
  if (purge) options.purge_step = steps.first;
  lockstep::TensorBoardWriter writer(folder, options);
  for (std::int64_t step = steps.first; step < steps.end; ++step) {
    const auto number = static_cast<double>(step);
    writer.add_scalar("loss/train", 1 / (number + 1), step);
    writer.add_text("notes", "step **" + std::to_string(step) + "** äöü", step);
    writer.add_histogram("weights", at::arange(-20, 21) * 0.5 * (number + 1), step);
    // Red grows to the right, green downwards, blue with the step.
    const at::Tensor across = at::arange(5, at::kFloat) / 4;
    writer.add_image(
        "image",
        at::stack({across.expand({3, 5}), across.slice(0, 0, 3).unsqueeze(1).expand({3, 5}),
                   at::full({3, 5}, number / 10)}),
        step);
    writer.add_images("grid", at::arange(10, at::kByte).view({10, 1, 1, 1}).expand({10, 1, 3, 2}),
                      step);
  }
  if (steps.first == 0) writer.add_scalar("not finite", std::nan(""), 0);
}

void write_csv(const std::string& folder, const Steps& steps) {
  lockstep::CsvFile file(folder + "/metrics.csv");
  for (std::int64_t step = steps.first; step < steps.end; ++step) {
    const auto number = static_cast<double>(step);
    file.write({{"step", number}, {"train, loss", 1 / (number + 1)}});
    if (step % 3 == 2)
      file.write({{"step", number}, {"val \"loss\"", number == 2 ? std::nan("") : number}});
  }
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] {
    if (argc < 5) throw lockstep::UsageError("record_worker events|csv FOLDER FIRST END [purge]");
    const Steps steps{.first = std::atoll(argv[3]), .end = std::atoll(argv[4])};
    if (std::string(argv[1]) == "csv") {
      write_csv(argv[2], steps);
    } else {
      write_events(argv[2], steps, argc > 5);
    }
    return 0;
  });
}

}  // namespace record_worker
