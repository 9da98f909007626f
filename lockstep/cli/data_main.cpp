// The program `lockstep-data`, which `lockstep data` becomes: it loads libcurl, libarchive and
// OpenSSL, without which `lockstep` starts in a millisecond.
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <signal.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/nearest_name.h"
#include "lockstep/cli/data_options.h"
#include "lockstep/cli/finish_output.h"
#include "lockstep/fetch/get_data_set.h"
#include "lockstep/fetch/recipe.h"
#include "lockstep/fetch/text_file.h"
#include "lockstep/fetch/transfer_progress.h"
#include "lockstep/os/signals.h"

namespace lockstep {
namespace {

class Stopped : public Error {
 public:
  explicit Stopped(int signal)
      : Error("data: stopped by " + signal_name(signal) + "; nothing was left behind"),
        signal_(signal) {}
  const char* name() const noexcept override { return "Stopped"; }
  int exit_code() const noexcept override { return 128 + signal_; }

 private:
  int signal_;
};

std::vector<Recipe> known_recipes(const DataOptions& options) {
  if (options.recipe_file.empty()) return builtin_recipes();
  return parse_recipes(read_text_file(options.recipe_file), options.recipe_file);
}

Recipe chosen_recipe(const DataOptions& options) {
  const std::vector<Recipe> recipes = known_recipes(options);
  if (options.name.empty() && recipes.size() == 1) return recipes.front();
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes) {
    if (recipe.name == options.name) return recipe;
    names.push_back(recipe.name);
  }
  const std::string suggestion = did_you_mean(options.name, names);
  throw UsageError(
      concat("data get: there is no data set '", options.name, "'",
             suggestion.empty() ? "; lockstep data list shows those that are there" : suggestion));
}

// "." and the like name a folder that is in use under another name.
std::string target_folder(const DataOptions& options, const Recipe& recipe) {
  if (options.folder.empty()) return "data/" + recipe.name;
  const std::string& folder = options.folder;
  const std::size_t end = folder.find_last_not_of('/');
  const std::string last =
      end == std::string::npos ? "" : folder.substr(0, end + 1).substr(folder.rfind('/', end) + 1);
  if (last.empty() || last == "." || last == "..") {
    throw UsageError(concat("--to='", folder, "': name the folder that is to be made, as in --to=",
                            "data/", recipe.name));
  }
  return folder;
}

int get(const DataOptions& options) {
  const Recipe recipe = chosen_recipe(options);
  const std::string folder = target_folder(options, recipe);
  std::string index_url = options.index_url;
  if (index_url.empty()) {
    index_url = env::text(env::kPipIndexUrl).value_or(kDefaultPackageIndex);
  }
  SignalFd signals({SIGINT, SIGTERM, SIGHUP});
  const GetDataSetResult result = get_data_set(recipe, {.folder = folder,
                                                        .index_url = index_url,
                                                        .force = options.force,
                                                        .stall_timeout = options.timeout,
                                                        .check_stop = [&] {
                                                          if (const auto signal = signals.next()) {
                                                            throw Stopped(*signal);
                                                          }
                                                        }});
  if (result.was_there) {
    std::printf("%s is in %s already, whole\n", recipe.name.c_str(), folder.c_str());
    return 0;
  }
  std::printf("%s is in %s: %s, %s; %s/LICENSES.txt says whose they are\n", recipe.name.c_str(),
              folder.c_str(), result.content.c_str(), bytes_text(result.size_bytes).c_str(),
              folder.c_str());
  return 0;
}

int list(const DataOptions& options) {
  const std::vector<Recipe> recipes = known_recipes(options);
  if (options.json) {
    std::string text;
    for (const Recipe& recipe : recipes) {
      text += (text.empty() ? "[\n" : ",\n") + recipe.json.substr(0, recipe.json.size() - 1);
    }
    std::printf("%s\n]\n", text.empty() ? "[" : text.c_str());
    return 0;
  }
  std::printf("%-12s %-9s %s\n", "NAME", "DOWNLOAD", "WHAT");
  for (const Recipe& recipe : recipes) {
    std::uint64_t size_bytes = 0;
    for (const RecipeSource& source : recipe.sources) size_bytes += source.size_bytes;
    std::printf("%-12s %-9s %s\n", recipe.name.c_str(), bytes_text(size_bytes).c_str(),
                recipe.summary.c_str());
  }
  std::fputs("\nlockstep data get NAME fetches one to data/NAME; lockstep data --help has more\n",
             stdout);
  return 0;
}

int run_data(const std::vector<std::string>& arguments) {
  const DataOptions options = parse_data_options(arguments);
  switch (options.action) {
    case DataOptions::Action::kGet:
      return get(options);
    case DataOptions::Action::kList:
      return list(options);
    case DataOptions::Action::kAudit:  // lockstep's own.
    case DataOptions::Action::kHelp:
      std::fputs(data_help(), stdout);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    const int status = lockstep::run_data({argv + 1, argv + argc});
    lockstep::finish_output();
    return status;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return lockstep::kExitFailure;
  }
}
