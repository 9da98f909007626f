#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// One option of a program: its names, its help text, how its value is set and shown.
struct ProgramOption {
  /// As in files, with dots for sections: "ddp.bucket_cap_mb". The flag is `--ddp.bucket-cap-mb`,
  /// the environment variable `<prefix>DDP__BUCKET_CAP_MB`.
  std::string name;
  /// Shown by `--help`.
  std::string help;
  /// Sets the value from text. Returns what is wrong with the text, such as "must be an integer",
  /// or "".
  std::function<std::string(const std::string& text)> set;
  /// The value as text.
  std::function<std::string()> get;
  /// What values a file may give: a string, a number, true and false, or these and a number.
  enum class Kind { kText, kNumber, kFlag, kFlagOrNumber } kind = Kind::kText;
  /// Heading in `--help`. Empty: the group of set_group().
  std::string group = {};
};

/// Values that an option with a number accepts, both ends included.
template <class Number>
struct NumberRange {
  Number least = std::numeric_limits<Number>::lowest();  ///< smallest value
  Number most = std::numeric_limits<Number>::max();      ///< largest value

  /// Finite numbers above 0.
  static NumberRange positive() requires std::floating_point<Number> {
    return {.least = std::numeric_limits<Number>::denorm_min()};
  }

  /// What a value must be: "must be an integer from 1 to 8".
  std::string requirement() const {
    const NumberRange any{};
    if (std::floating_point<Number> && least == std::numeric_limits<Number>::denorm_min() &&
        most == any.most) {
      return "must be a positive number";
    }
    if (least != any.least || most != any.most) {
      return "must be " + std::string(std::integral<Number> ? "an integer" : "a number") +
             " from " + text_of(least) + " to " + text_of(most);
    }
    if (std::floating_point<Number>) return "must be a number";
    return std::is_unsigned_v<Number> ? "must be an integer of at least 0" : "must be an integer";
  }

  /// As the command line reads it.
  static std::string text_of(Number number) {
    char digits[32];
    return std::string(digits, std::to_chars(digits, digits + sizeof(digits), number).ptr);
  }
};

/// Settings of a ProgramOptions.
struct ProgramOptionsSettings {
  /// Prefix of the program's environment variables. A variable with this prefix that is no option
  /// is an error.
  std::string environment_prefix = "LOCKSTEP_TRAINER_";
};

/// Reads a program's options from a file (`--config`, TOML or JSON), the environment and the
/// command line. The command line overrides the environment, which overrides the file. A variable
/// holds its default before parse() and its value after it.
///
///     double lr = 1e-3;
///     lockstep::TrainerOptions options;
///     lockstep::ProgramOptions program("Trains on handwritten digits.");
///     program.add("lr", lr, "learning rate");
///     lockstep::add_trainer_options(program, options);
///     if (!program.parse(argc, argv)) return 0;  // it was --help
///
/// In a job every process reads them; only rank 0 prints `--help` and `--print-config`.
/// Threads: one at a time.
/// Lifetime: the variables must outlive it.
class ProgramOptions {
 public:
  /// `about` is the first line of --help.
  explicit ProgramOptions(std::string about, ProgramOptionsSettings settings = {});

  /// Adds an option.
  /// Errors: UsageError if the name is already taken.
  void add(ProgramOption option);
  /// Adds an option with a text, or with a number in a range: an integer, or a finite
  /// floating-point number.
  void add(std::string name, std::string& value, std::string help);
  template <class Number>
  requires(std::integral<Number> || std::floating_point<Number>)  //
      void add(std::string name, Number& value, std::string help, NumberRange<Number> range = {}) {
    add({.name = std::move(name),
         .help = std::move(help),
         .set =
             [&value, range](const std::string& text) {
               const char* const end = text.data() + text.size();
               Number number{};
               const auto [stop, error] = std::from_chars(text.data(), end, number);
               const bool is_number = error == std::errc() && stop == end && std::isfinite(number);
               if (!is_number || number < range.least || number > range.most) {
                 return range.requirement();
               }
               value = number;
               return std::string();
             },
         .get = [&value] { return NumberRange<Number>::text_of(value); },
         .kind = ProgramOption::Kind::kNumber});
  }
  /// Adds a flag: `--name` or `--name=false`; true or false in files.
  void add(std::string name, bool& value, std::string help);
  /// Adds an enumeration with the texts of its values: {{"skip", NonFinite::kSkip}, …}.
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
  /// Heading in `--help` of the options that are added from now on.
  void set_group(std::string group) { group_ = std::move(group); }

  /// Reads all options. Returns false after `--help` or `--print-config`, whose answer it has
  /// printed.
  /// Errors: UsageError with the flag, the variable, or file and line, and for an unknown name the
  /// nearest known one; SystemError for the file.
  bool parse(int argc, const char* const* argv);

  /// All values in TOML, as a file that `--config` reads.
  std::string toml() const;

 private:
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
