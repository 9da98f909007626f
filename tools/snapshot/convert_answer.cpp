#include <algorithm>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/snapshot/checkpoint.h"
#include "lockstep/snapshot/checkpoint/verify_checkpoint.h"
#include "tools/snapshot/inspected_snapshot.h"
#include "tools/snapshot/progress_line.h"
#include "tools/snapshot/side_files.h"
#include "tools/snapshot/snapshot_answers.h"

namespace lockstep::inline internal {
namespace {

std::string checked_choice(const char* flag, const std::string& value,
                           const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, value) != choices.end()) return value;
  std::string list;
  for (const std::string& choice : choices) list += (list.empty() ? "" : ", ") + choice;
  throw UsageError(concat("snapshot convert: ", flag, "='", value, "'; it is one of ", list));
}

/// A name without one of these ends is that of a folder.
CheckpointFormat target_format(const ConvertRequest& request) {
  const std::string extension = request.target.extension();
  const bool is_torch_name = extension == ".pt" || extension == ".pth" || extension == ".bin";
  const bool is_file = extension == ".safetensors" || is_torch_name;
  const std::string format = request.format.empty() ? (is_torch_name ? "pt" : "safetensors")
                                                    : checked_choice("--format", request.format,
                                                                     {"safetensors", "dcp", "pt"});
  if (format == "pt") return CheckpointFormat::kTorchSave;
  if (format == "dcp" && is_file) {
    throw UsageError(concat("snapshot convert: ", request.target.string(),
                            " is the name of a file, and dcp is a folder; choose another name"));
  }
  if (format == "dcp") return CheckpointFormat::kDistributed;
  return is_file ? CheckpointFormat::kSafetensors : CheckpointFormat::kShardedSafetensors;
}

/// Of a folder of weights that becomes one; empty elsewhere.
SideFiles side_files_of(const CheckpointReader& source, CheckpointFormat target) {
  const bool is_folder =
      target == CheckpointFormat::kShardedSafetensors || target == CheckpointFormat::kDistributed;
  if (!is_folder || !is_checkpoint_folder(source.path())) return {};
  return read_side_files(source.path());
}

std::string list_of(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += concat(list.empty() ? "" : ", ", name);
  return list;
}

/// What was done with all but the tensors.
std::string remarks(const CheckpointReader& source, const SideFiles& files, bool writes_tied_once) {
  std::string text;
  if (!files.texts.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, content] : files.texts) names.push_back(name);
    text += concat("copied ", list_of(names), "\n");
  }
  if (!files.left_out.empty()) text += concat("not copied: ", list_of(files.left_out), "\n");
  for (const CheckpointTensor& tensor : source.tensors()) {
    if (!writes_tied_once || tensor.tied_to.empty()) continue;
    text += concat("left out ", tensor.name, ", which is tied to ", tensor.tied_to, "\n");
  }
  return text;
}

}  // namespace

SnapshotAnswer convert_answer(const ConvertRequest& request) {
  SaveCheckpointOptions options{.format = target_format(request),
                                .shards = std::max(1, request.shards),
                                .replace = request.force};
  std::error_code error;
  if (!request.force && std::filesystem::exists(request.target, error)) {
    throw UsageError(concat("snapshot convert: ", request.target.string(),
                            " exists; choose another name, or replace it with --force"));
  }
  const bool is_all = checked_choice("--part", request.part, {"model", "all"}) == "all";
  const CheckpointPart part = is_all ? CheckpointPart::kAll : CheckpointPart::kModel;
  const CheckpointReader source(request.source, {.part = part});
  if (source.tensors().empty()) {
    throw UsageError(
        concat("snapshot convert: ", request.source.string(), " has no tensors; name another"));
  }
  for (const auto& [key, value] : source.metadata()) options.metadata[key] = value;
  verify_checkpoint(source, part);
  const SideFiles side_files = side_files_of(source, options.format);
  options.extra_files = side_files.texts;
  {
    ProgressLine progress("convert");
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
      progress.update(done, total);
    };
    convert_checkpoint(source, request.target, options);
  }
  const bool writes_tied_once = options.format == CheckpointFormat::kSafetensors ||
                                options.format == CheckpointFormat::kShardedSafetensors;
  const auto written = std::ranges::count_if(source.tensors(), [&](const CheckpointTensor& tensor) {
    return !writes_tied_once || tensor.tied_to.empty();
  });
  return {.text = concat("wrote ", request.target.string(), ", ",
                         count_text(static_cast<std::size_t>(written), "tensor"), ", ",
                         size_text(static_cast<double>(size_on_disk(request.target))), "\n",
                         remarks(source, side_files, writes_tied_once))};
}

}  // namespace lockstep::inline internal
