#include "launcher/command_line/split_arguments.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Texts = std::vector<std::string>;

SplitArguments split(const Texts& arguments) {
  return split_arguments(arguments, {{.name = "nproc-per-node", .takes_value = true},
                                     {.name = "standalone"},
                                     {.name = "start-method", .takes_value = true},
                                     {.name = "redirects", .letter = 'r', .takes_value = true},
                                     {.name = "module", .letter = 'm'}});
}

TEST(SplitArguments, TakesBothSpellingsAndBothForms) {
  const Texts expected = {"--nproc-per-node=2"};
  EXPECT_EQ(split({"--nproc-per-node=2"}).flags, expected);
  EXPECT_EQ(split({"--nproc-per-node", "2"}).flags, expected);
  EXPECT_EQ(split({"--nproc_per_node=2"}).flags, expected);
  EXPECT_EQ(split({"--nproc_per_node", "2"}).flags, expected);
  EXPECT_EQ(split({"-r", "3", "-m"}).flags, (Texts{"--redirects=3", "--module"}));
  EXPECT_EQ(split({"-r3"}).flags, (Texts{"--redirects=3"}));
}

TEST(SplitArguments, AFlagIsTakenApartAtItsFirstEqualsSign) {
  EXPECT_EQ(name_and_value("--standalone"),
            std::make_pair(std::string("standalone"), std::string()));
  EXPECT_EQ(name_and_value("--conf=a=b"), std::make_pair(std::string("conf"), std::string("a=b")));
}

TEST(SplitArguments, TakesBeginningsAsTorchrunDoes) {
  EXPECT_EQ(split({"--nproc=2"}).flags, (Texts{"--nproc-per-node=2"}));
  EXPECT_EQ(split({"--nproc_per", "2"}).flags, (Texts{"--nproc-per-node=2"}));
  EXPECT_EQ(split({"--stan"}).flags, (Texts{"--standalone"}));
}

TEST(SplitArguments, TakesLettersAsTorchrunDoes) {
  EXPECT_EQ(split({"-r=3"}).flags, (Texts{"--redirects=3"}));
  EXPECT_EQ(split({"-mr3"}).flags, (Texts{"--module", "--redirects=3"}));
  EXPECT_EQ(split({"-mr", "0:1", "x"}).flags, (Texts{"--module", "--redirects=0:1"}));
  EXPECT_EQ(split({"-r0:1=2"}).flags, (Texts{"--redirects=0:1=2"}));
}

TEST(SplitArguments, LeavesTheProgramsArgumentsAlone) {
  const Texts program = {"./train", "--nproc_per_node=3", "--", "-r", "", "--unknown"};
  Texts arguments = {"--standalone"};
  arguments.insert(arguments.end(), program.begin(), program.end());
  EXPECT_EQ(split(arguments).program, program);
  arguments.insert(arguments.begin() + 1, "--");
  EXPECT_EQ(split(arguments).program, program);
}

TEST(SplitArguments, AValueMayLookLikeAFlagOrAProgram) {
  const SplitArguments result = split({"--nproc-per-node", "-1", "-r", "./x", "-"});
  EXPECT_EQ(result.flags, (Texts{"--nproc-per-node=-1", "--redirects=./x"}));
  EXPECT_EQ(result.program, (Texts{"-"}));
}

TEST(SplitArguments, AfterTwoDashesAnythingIsTheProgram) {
  EXPECT_EQ(split({"--", "--standalone"}).program, (Texts{"--standalone"}));
  EXPECT_EQ(split({"--"}).program, Texts{});
}

TEST(SplitArguments, RefusesWhatItDoesNotKnow) {
  const auto message = [](const Texts& arguments) -> std::string {
    try {
      split(arguments);
      return "accepted";
    } catch (const UsageError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(message({"--nproc_per_mode=2", "x"}),
            "unknown flag --nproc_per_mode; did you mean --nproc-per-node?");
  EXPECT_EQ(message({"--standalome"}), "unknown flag --standalome; did you mean --standalone?");
  EXPECT_EQ(message({"--sta=2"}), "--sta may be any of --standalone, --start-method");
  EXPECT_EQ(message({"--=2"}), "unknown flag --; --help lists all");
  EXPECT_EQ(message({"-standalone"}), "unknown flag -standalone; did you mean --standalone?");
  EXPECT_EQ(message({"-z"}), "unknown flag -z; --help lists all");
  EXPECT_EQ(message({"--nproc-per-node"}), "--nproc-per-node needs a value");
  EXPECT_EQ(message({"-r"}), "--redirects needs a value");
  EXPECT_EQ(message({"--redirects=", "x"}), "--redirects needs a value");
  EXPECT_EQ(message({"--standalone=1"}), "--standalone takes no value, but has '1'");
  EXPECT_EQ(message({"-m=1"}), "--module takes no value, but has '1'");
  EXPECT_EQ(message({"-mz"}), "unknown flag -z; --help lists all");
}

}  // namespace
}  // namespace lockstep
