#include "tools/snapshot/snapshot_options.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include <CLI/CLI.hpp>

#include "launcher/command_line/flag_values.h"
#include "lockstep/base/error.h"

namespace lockstep::inline internal {
namespace {

using Action = SnapshotOptions::Action;

struct NamedAction {
  const char* name;
  Action action;
  std::size_t least_paths;
  std::size_t most_paths;
  const char* example;
};

constexpr std::size_t kAnyNumber = 1'000'000;
constexpr std::array<NamedAction, 6> kActions{{
    {"ls", Action::kList, 1, 1, "lockstep snapshot ls runs/digits"},
    {"verify", Action::kVerify, 1, kAnyNumber, "lockstep snapshot verify runs/digits"},
    {"show", Action::kShow, 1, 1, "lockstep snapshot show runs/digits/snapshot-e0003-s00000420.pt"},
    {"diff", Action::kDiff, 2, 2, "lockstep snapshot diff one.pt other.pt"},
    {"export", Action::kExport, 2, 2, "lockstep snapshot export one.pt model.safetensors"},
    {"prune", Action::kPrune, 1, 1, "lockstep snapshot prune runs/digits --keep=2"},
}};

[[noreturn]] void refuse_usage(const std::string& problem) {
  throw UsageError("snapshot" + problem);
}

/// As the target's name says, where no flag does.
std::string format_of(const std::string& target) {
  const std::string extension = std::filesystem::path(target).extension();
  if (extension == ".safetensors") return "safetensors";
  if (extension == ".pt" || extension == ".pth" || extension == ".bin") return "pt";
  refuse_usage(" export: which format is '" + target +
               "'? Say --format=safetensors, pt or accelerate");
}

void check_choice(const std::string& flag, const std::string& value,
                  const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, value) != choices.end()) return;
  std::string list;
  for (const std::string& choice : choices) list += (list.empty() ? "" : ", ") + choice;
  refuse_usage(" export: " + flag + "='" + value + "' is none of " + list);
}

void check_export(SnapshotOptions& options) {
  if (options.format.empty()) options.format = format_of(options.paths[1]);
  check_choice("--format", options.format, {"safetensors", "pt", "accelerate"});
  check_choice("--part", options.part, {"model", "optimizer", "ema"});
  if (options.part == "optimizer" && options.format == "safetensors") {
    refuse_usage(
        " export: an optimizer's state has numbers beside tensors, which safetensors cannot hold; "
        "use --format=pt");
  }
  if (options.part == "optimizer" && !options.prefix.empty()) {
    refuse_usage(" export: --prefix is for the names of weights, an optimizer has none");
  }
  if (options.part == "optimizer" && options.format == "accelerate") {
    refuse_usage(" export: --format=accelerate writes models and optimizers; leave out --part");
  }
}

}  // namespace

SnapshotOptions parse_snapshot_options(const std::vector<std::string>& arguments) {
  SnapshotOptions options;
  bool help = false;
  std::string keep;
  CLI::App app;
  app.set_help_flag();
  app.add_flag("-h,--help", help);
  std::vector<CLI::App*> commands;
  for (const NamedAction& named : kActions) {
    CLI::App* const command = app.add_subcommand(named.name);
    command->set_help_flag();
    command->add_flag("-h,--help", help);
    command->add_option("PATH", options.paths);
    if (named.action != Action::kExport && named.action != Action::kPrune) {
      command->add_flag("--json", options.json);
    }
    commands.push_back(command);
  }
  CLI::App* const exporting = app.get_subcommand("export");
  exporting->add_option("--format", options.format);
  exporting->add_option("--part", options.part);
  exporting->add_option("--prefix", options.prefix);
  exporting->add_flag("--force", options.force);
  CLI::App* const pruning = app.get_subcommand("prune");
  pruning->add_option("--keep", keep);
  pruning->add_flag("--dry-run,--dry_run", options.dry_run);
  app.require_subcommand(0, 1);

  if (!arguments.empty() && arguments.front() == "help") return options;
  const auto is_front = [&](const NamedAction& named) { return arguments.front() == named.name; };
  if (!arguments.empty() && !arguments.front().starts_with("-") &&
      std::ranges::none_of(kActions, is_front)) {
    refuse_usage(": unknown action '" + arguments.front() +
                 "'; it is one of ls, verify, show, diff, export and prune");
  }
  try {
    // It takes them last first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    refuse_usage(std::string(": ") + error.what() + "; lockstep snapshot --help lists the flags");
  }
  if (help) return options;
  const auto parsed =
      std::ranges::find_if(commands, [](const CLI::App* command) { return command->parsed(); });
  if (parsed == commands.end()) {
    refuse_usage(": ls, verify, show, diff, export or prune? As in: lockstep snapshot ls DIR");
  }
  const NamedAction& named = kActions[static_cast<std::size_t>(parsed - commands.begin())];
  options.action = named.action;
  if (options.paths.size() < named.least_paths || options.paths.size() > named.most_paths) {
    refuse_usage(std::string(" ") + named.name + ": it takes " +
                 (named.most_paths == kAnyNumber ? "at least " : "") +
                 std::to_string(named.least_paths) + (named.least_paths == 1 ? " path" : " paths") +
                 "; as in: " + named.example);
  }
  if (named.action == Action::kExport) check_export(options);
  if (named.action == Action::kPrune) {
    if (keep.empty()) {
      refuse_usage(std::string(" prune: how many are to stay? As in: ") + named.example);
    }
    options.keep = int_of("--keep", keep, 1);
  }
  return options;
}

const char* snapshot_help() {
  return R"(Usage: lockstep snapshot ls DIR [--json]
       lockstep snapshot verify PATH... [--json]
       lockstep snapshot show SNAPSHOT [--json]
       lockstep snapshot diff SNAPSHOT SNAPSHOT [--json]
       lockstep snapshot export SNAPSHOT TARGET [flags]
       lockstep snapshot prune DIR --keep=N [--dry-run]

Looks at what trainings have saved. A snapshot is a file, snapshot-e0003-s00000420.pt, which Python's
torch.load reads too, or a directory, snapshot-e0003-s00000420, into which each rank has written a share;
its manifest.json says what belongs to it. DIR is where they lie. show, diff, verify and export also take
weights of other programs: .pt files of torch.save and .safetensors files.

  ls       all snapshots of a run, newest first, with what unfinished saves have left
  verify   reads every byte: whole, or which file and which tensors are damaged. DIR stands for all in it.
           safetensors have no checksum: only their structure can be verified.
  show     epoch, step and ranks; of each tensor dtype, shape, mean, standard deviation, norm and how many
           numbers are not finite; the optimizer's groups with their options
  diff     names that one of them lacks, other shapes, the largest absolute and relative difference of each
           tensor, and how many have identical bits. Of a snapshot and weights, the weights.
  export   writes a part for other programs, atomically
  prune    deletes all but the newest N whole snapshots, and what unfinished saves before them have left.
           Damaged ones do not count as kept; where none is whole nothing is deleted.

Flags of export:
  --format=FORMAT  safetensors; pt: a state dict for torch.load(..., weights_only=True); accelerate: a
                   directory for accelerate's load_state, with model.safetensors and optimizer.bin.
                   Default: as TARGET ends, .safetensors or .pt.
  --part=PART      model (default); optimizer: its state_dict(), as pt; ema: the averages of an
                   ExponentialMovingAverage that was saved with the model
  --prefix=TEXT    put before each name: "module." for a model that Python's DistributedDataParallel wraps
  --force          replace TARGET

Flags of prune:
  --keep=N         how many whole ones stay, at least 1
  --dry-run        say what would be deleted

  -h, --help       this text

Exit code: 0; 1 when verify finds damage, diff a difference, or a file cannot be read; 2 for a wrong command
line.

Examples:
  lockstep snapshot ls runs/digits/snapshots
  lockstep snapshot verify runs/digits/snapshots && echo all whole
  lockstep snapshot show runs/digits/snapshots/snapshot-e0003-s00000420.pt
  lockstep snapshot export runs/digits/snapshots/snapshot-e0003-s00000420 model.safetensors
  lockstep snapshot prune runs/digits/snapshots --keep=2 --dry-run
)";
}

}  // namespace lockstep::inline internal
