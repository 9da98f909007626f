#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::inline internal {

/// Progress of a training run.
struct Progress {
  std::int64_t epoch = 0;  ///< from 0
  std::int64_t epochs = 1;
  std::int64_t step = 0;  ///< steps of this epoch that are done
  std::int64_t steps_per_epoch = 1;
  double steps_per_second = 0;  ///< 0: not known yet
  std::optional<double> loss = std::nullopt;
};

/// Options of progress_line().
struct ProgressLineOptions {
  int columns = 80;  ///< maximum length of the line
  bool bar = true;
  bool color = false;
};

/// Completed fraction of the whole run, 0 to 1.
double fraction_done(const Progress& progress);

/// "epoch  3/20 [=====>        ]  42 %  step 12/23  310 step/s  eta 0:05  loss 0.1234". The bar
/// fills the remaining columns; if there are too few, the last fields are dropped first.
std::string progress_line(const Progress& progress, const ProgressLineOptions& options);

/// "0:05", "12:07", "3:00:01".
std::string clock_text(std::chrono::seconds duration);

}  // namespace lockstep::inline internal
