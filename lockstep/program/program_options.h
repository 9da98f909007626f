#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// One option of a program: how its value is set and shown.
struct ProgramOption {
  /// As in files, where dots stand for sections: "ddp.bucket_cap_mb". The flag is
  /// --ddp.bucket-cap-mb, the variable of the environment <prefix>DDP__BUCKET_CAP_MB.
  std::string name;
  std::string help;
  /// Takes a value, or says what is wrong with it: "must be an integer".
  std::function<std::string(const std::string& text)> set;
  std::function<std::string()> get;
  enum class Kind { kText, kNumber, kFlag } kind = Kind::kText;
  /// The heading in --help. Empty: that of set_group.
  std::string group = {};
};

struct ProgramOptionsSettings {
  /// Of the environment's variables that are values. Others that begin so are refused.
  std::string environment_prefix = "LOCKSTEP_TRAINER_";
};

/// A program's options: from a file (--config, TOML or JSON), the environment and the command line,
/// of which a later one counts more. Variables hold the default before, the value after.
///
///   double lr = 1e-3;
///   lockstep::TrainerOptions options;
///   lockstep::ProgramOptions program("Trains on handwritten digits.");
///   program.add("lr", lr, "learning rate");
///   lockstep::add_trainer_options(program, options);
///   if (!program.parse(argc, argv)) return 0;  // it was --help
///
/// In a job each process reads them, and the first alone answers --help and --print-config.
/// Threads: one. Lifetime: variables must outlive it.
class ProgramOptions {
 public:
  explicit ProgramOptions(std::string about, ProgramOptionsSettings settings = {});

  /// Errors: UsageError for a name that is there already.
  void add(ProgramOption option);
  void add(std::string name, std::string& value, std::string help);
  template <class Number>
  requires(std::integral<Number> || std::floating_point<Number>)  //
      void add(std::string name, Number& value, std::string help) {
    add({.name = std::move(name),
         .help = std::move(help),
         .set =
             [&value](const std::string& text) {
               const char* const end = text.data() + text.size();
               Number number{};
               const auto [stop, error] = std::from_chars(text.data(), end, number);
               if (error != std::errc() || stop != end || !std::isfinite(number)) {
                 return std::string(kNumberKind<Number>);
               }
               value = number;
               return std::string();
             },
         .get =
             [&value] {
               char digits[32];
               return std::string(digits,
                                  std::to_chars(digits, digits + sizeof(digits), value).ptr);
             },
         .kind = ProgramOption::Kind::kNumber});
  }
  /// A flag: --name and --name=false, true and false in files.
  void add(std::string name, bool& value, std::string help);
  /// An enumeration, given by its texts: {{"skip", NonFinite::kSkip}, …}.
  template <class Enum, std::size_t N>
  requires std::is_enum_v<Enum>
  void add(std::string name, Enum& value, const std::array<std::pair<const char*, Enum>, N>& names,
           std::string help) {
    add({.name = std::move(name),
         .help = std::move(help),
         .set =
             [&value, names](const std::string& text) {
               std::string wrong = "must be ";
               for (std::size_t i = 0; i < N; ++i) {
                 if (text == names[i].first) {
                   value = names[i].second;
                   return std::string();
                 }
                 if (i > 0) wrong += i + 1 < N ? ", " : " or ";
                 wrong += *names[i].first == '\0' ? "''" : names[i].first;
               }
               return wrong;
             },
         .get =
             [&value, names] {
               for (const auto& [text, choice] : names) {
                 if (choice == value) return std::string(text);
               }
               return std::string();
             }});
  }
  /// Of the options that are added from now on.
  void set_group(std::string group) { group_ = std::move(group); }

  /// False: it was --help or --print-config, and is answered. Errors: UsageError naming flag,
  /// variable or file and line, and for an unknown name the nearest; SystemError for the file.
  bool parse(int argc, const char* const* argv);

  /// All values as a file that --config takes.
  std::string toml() const;

 private:
  template <class Number>
  static constexpr const char* kNumberKind =
      std::floating_point<Number>  ? "must be a number"
      : std::is_unsigned_v<Number> ? "must be an integer of at least 0"
                                   : "must be an integer";

  void apply_file(const std::string& file);
  void apply_environment();
  std::vector<std::string> names() const;
  std::string variable_of(const std::string& name) const;

  std::string about_;
  std::string prefix_;
  std::string group_ = "Options";
  std::vector<ProgramOption> options_;
};

}  // namespace lockstep
