// The program `lockstep-snapshot`, which `lockstep snapshot` becomes: it loads LibTorch.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "launcher/command_line/run_tool.h"
#include "tools/parse_flags.h"
#include "tools/snapshot/snapshot_answers.h"

namespace lockstep::inline internal {
namespace {

using Path = std::filesystem::path;

int snapshot_command(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Lists, verifies, shows, compares, exports, converts and deletes snapshots. A snapshot is a "
      "file that "
      "Python's\n"
      "torch.load reads, or a folder with a shard of each rank and manifest.json. verify, show, "
      "diff "
      "and\n"
      "export also take .safetensors files, .pt files of torch.save, folders of sharded "
      "safetensors\nand folders of torch.distributed.checkpoint.",
      "lockstep snapshot");
  Path directory;
  Path snapshot;
  std::vector<Path> paths;
  bool is_json = false;
  DiffRequest compared;
  ExportRequest exported;
  ConvertRequest converted;
  PruneRequest pruned;
  const auto add_json = [&](CLI::App* action) {
    action->add_flag("--json", is_json, "print the result as JSON");
  };

  CLI::App* const list = app.add_subcommand("ls", "lists the snapshots of a run, newest first");
  list->add_option("DIR", directory, "folder of the snapshots")->required();
  add_json(list);

  CLI::App* const verify =
      app.add_subcommand("verify", "reads every byte, and names damaged files and tensors");
  verify->add_option("PATH", paths, "snapshots, weights, or folders of snapshots")->required();
  add_json(verify);

  CLI::App* const show = app.add_subcommand(
      "show", "prints epoch, step, ranks, optimizer options, and statistics of each tensor");
  show->add_option("SNAPSHOT", snapshot, "a snapshot, or weights")->required();
  add_json(show);

  CLI::App* const diff = app.add_subcommand("diff", "compares two, tensor by tensor");
  diff->add_option("SNAPSHOT", compared.first, "a snapshot, or weights")->required();
  diff->add_option("OTHER", compared.second,
                   "the other; if one holds only weights, only weights are compared")
      ->required();
  diff->add_option("--part", compared.part,
                   "model: the weights; all: every tensor by its path (default: all of two "
                   "snapshots, else model)")
      ->option_text("NAME");
  add_json(diff);

  CLI::App* const exporting =
      app.add_subcommand("export", "writes weights or optimizer state for other programs");
  exporting->add_option("SNAPSHOT", exported.source, "a snapshot, or weights")->required();
  exporting->add_option("TARGET", exported.target, "the file to write")->required();
  exporting
      ->add_option(
          "--format", exported.format,
          "pt for torch.load(..., weights_only=True), or safetensors (default: by TARGET's "
          "name)")
      ->option_text("NAME");
  exporting
      ->add_option("--part", exported.part,
                   "model (default), optimizer, or ema: the weights of an ExponentialMovingAverage")
      ->option_text("NAME");
  exporting
      ->add_option("--prefix", exported.prefix,
                   "put before each name, as \"module.\" for Python's DistributedDataParallel")
      ->type_name("TEXT");
  exporting->add_flag("--force", exported.force, "replace TARGET");

  CLI::App* const converting = app.add_subcommand(
      "convert",
      "writes the tensors of a snapshot, file or folder in another format, without loading them "
      "whole; from folder to folder also config.json and other .json and .txt files");
  converting
      ->add_option("SOURCE", converted.source,
                   "a snapshot, .pt or .safetensors file, or a folder of sharded safetensors or "
                   "torch.distributed.checkpoint")
      ->required();
  converting
      ->add_option("TARGET", converted.target,
                   "the file (.safetensors, .pt) or folder (any other name) to write")
      ->required();
  converting
      ->add_option("--format", converted.format,
                   "safetensors, dcp (torch.distributed.checkpoint) or pt (default: pt for a .pt "
                   "file, else safetensors)")
      ->option_text("NAME");
  add_integer(*converting, "--shards", converted.shards, 1,
              "number of files (default 1); safetensors may write fewer, as it does not split a "
              "tensor");
  converting
      ->add_option("--part", converted.part,
                   "model (default): the weights; all: every tensor by its path")
      ->option_text("NAME");
  converting->add_flag("--force", converted.force, "replace TARGET");

  CLI::App* const prune = app.add_subcommand(
      "prune", "deletes all but the newest complete snapshots, and leftovers of unfinished saves");
  prune->add_option("DIR", pruned.directory, "folder of the snapshots")->required();
  add_integer(*prune, "--keep", pruned.keep, 1, "complete snapshots to keep, at least 1 (required)")
      ->required();
  prune->add_flag("--dry-run", pruned.dry_run, "only print what would be deleted");

  app.footer(
      "lockstep snapshot SUBCOMMAND --help lists the flags of a subcommand.\n\n"
      "Exit code: 0; 1 if verify finds a damaged snapshot, if diff finds a difference, or if a "
      "file cannot be "
      "read;\n"
      "2 for a wrong command line.\n\n"
      "Examples:\n"
      "  lockstep snapshot verify runs/digits/snapshots\n"
      "  lockstep snapshot export runs/digits/snapshots/snapshot-e0003-s00000420 "
      "model.safetensors\n"
      "  lockstep snapshot convert hub/gpt2 runs/gpt2-dcp --format=dcp --shards=4");
  if (!parse_flags(app, arguments)) return 0;
  const SnapshotAnswer answer = list->parsed()         ? list_answer(directory, is_json)
                                : verify->parsed()     ? verify_answer(paths, is_json)
                                : show->parsed()       ? show_answer(snapshot, is_json)
                                : diff->parsed()       ? diff_answer(compared, is_json)
                                : exporting->parsed()  ? export_answer(exported)
                                : converting->parsed() ? convert_answer(converted)
                                                       : prune_answer(pruned);
  std::fputs(answer.text.c_str(), stdout);
  return answer.exit_code;
}

}  // namespace
}  // namespace lockstep::inline internal

int main(int argc, char** argv) {
  return lockstep::run_tool(argc, argv, lockstep::snapshot_command);
}
