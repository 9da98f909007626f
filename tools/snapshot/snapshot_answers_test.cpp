#include "tools/snapshot/snapshot_answers.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/jit/api/module.h>
#include <torch/optim/adam.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/snapshot/checkpoint.h"
#include "lockstep/snapshot/internal/archive_writer.h"
#include "lockstep/snapshot/internal/small_net.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"
#include "lockstep/snapshot/safetensors.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;

class SnapshotAnswers : public ::testing::Test {
 protected:
  SnapshotAnswers() { train(net_, optimizer_, 2); }

  const std::filesystem::path& run() const { return directory_.path(); }
  std::filesystem::path save(std::int64_t step, bool sharded = false,
                             const SnapshotSaveOptions& options = {}) {
    SnapshotSaveOptions how = options;
    how.step = step;
    SnapshotDirectory(run(), {.keep_last = 100, .sharded_saves = sharded})
        .save(*net_, optimizer_, how);
    return run() / SnapshotName{0, step, sharded}.file_name();
  }
  /// Flips a bit at a place from 0, the begin, to 1, the end.
  static void damage(const std::filesystem::path& path, double place) {
    std::string bytes = file_bytes(path);
    const auto at = static_cast<std::size_t>(place * static_cast<double>(bytes.size() - 1));
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    put_file_bytes(path, bytes);
  }
  static std::filesystem::path first_share(const std::filesystem::path& snapshot) {
    return snapshot / read_manifest(snapshot / kManifestName).files.front().name;
  }

  TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "snapshot-answers-"};
  SmallNet net_;
  torch::optim::Adam optimizer_{net_->parameters(), 0.01};
};

TEST_F(SnapshotAnswers, LsHasBothKindsAndWhatIsUnfinishedOrDamaged) {
  EXPECT_NE(list_answer(run(), false).text.find("no snapshots in"), std::string::npos);
  save(1);
  save(2, true);
  put_file_bytes(save(4), "short");
  std::filesystem::remove(save(5, true) / kManifestName);
  const json rows = json::parse(list_answer(run(), true).text);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0]["ranks"], nullptr);
  EXPECT_EQ(rows[1]["kind"], "sharded");
  EXPECT_EQ(rows[1]["ranks"], 1);
  EXPECT_EQ(rows[2]["name"], "snapshot-e0000-s00000001.pt");
  EXPECT_EQ(rows[2]["bytes"], std::filesystem::file_size(run() / "snapshot-e0000-s00000001.pt"));
  EXPECT_EQ(rows[2]["step"], 1);
  EXPECT_EQ(rows[3]["kind"], "unfinished");
  const std::string text = list_answer(run(), false).text;
  EXPECT_EQ(text.substr(0, 8), "SNAPSHOT");
  EXPECT_EQ(std::ranges::count(text, '\n'), 5);
  EXPECT_THROW(list_answer(run() / "none", false), UsageError);
}

TEST_F(SnapshotAnswers, VerifyNamesTheFileAndTheTensorsThatAreDamaged) {
  const auto whole = save(1);
  const auto sharded = save(2, true);
  const SnapshotAnswer good = verify_answer({run()}, false);
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(std::ranges::count(good.text, '\n'), 2) << good.text;

  // Where the bytes of a tensor are.
  const std::string bytes = file_bytes(whole);
  const at::Tensor weight = net_->second->weight.detach();
  const std::string needle(static_cast<const char*>(weight.const_data_ptr()), weight.nbytes());
  const std::size_t place = bytes.find(needle);
  ASSERT_NE(place, std::string::npos);
  std::string bad = bytes;
  bad[place] = static_cast<char>(bad[place] ^ 1);
  put_file_bytes(whole, bad);
  const SnapshotAnswer answer = verify_answer({whole, sharded}, false);
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_NE(answer.text.find("model.second.weight"), std::string::npos) << answer.text;
  EXPECT_EQ(answer.text.find("model.first.weight"), std::string::npos) << answer.text;

  const auto share = first_share(sharded);
  damage(share, 0.5);
  const json verdicts = json::parse(verify_answer({sharded}, true).text);
  EXPECT_EQ(verdicts[0]["whole"], false);
  EXPECT_NE(verdicts[0]["problems"][0].get<std::string>().find(share.filename().string()),
            std::string::npos);
}

TEST_F(SnapshotAnswers, VerifyNamesThreeTensorsOfADamagedRecordAndThatThereAreMore) {
  const at::Tensor base = at::arange(1000, 1064, at::kFloat);
  const std::string needle(static_cast<const char*>(base.const_data_ptr()), base.nbytes());
  const auto damaged_record = [&](std::int64_t step, const TensorDict& extra) {
    const auto path = save(step, false, {.extra = extra});
    std::string bytes = file_bytes(path);
    const std::size_t place = bytes.find(needle);
    bytes[place] = static_cast<char>(bytes[place] ^ 1);
    put_file_bytes(path, bytes);
    return verify_answer({path}, false).text;
  };
  const TensorDict three{{"a", base}, {"b", base.slice(0, 1)}, {"c", base.slice(0, 2)}};
  EXPECT_NE(damaged_record(1, three).find(": extra.a, extra.b, extra.c\n"), std::string::npos);
  TensorDict four = three;
  four.emplace_back("d", base.slice(0, 3));
  EXPECT_NE(damaged_record(2, four).find(": extra.a, extra.b, extra.c, …\n"), std::string::npos);
}

TEST_F(SnapshotAnswers, VerifyFindsDamageInEveryRegion) {
  for (const bool is_sharded : {false, true}) {
    const auto snapshot = save(is_sharded ? 2 : 1, is_sharded);
    std::vector<std::filesystem::path> files = {snapshot};
    if (is_sharded) files = {first_share(snapshot), snapshot / kManifestName};
    for (const auto& file : files) {
      const std::string good = file_bytes(file);
      for (int percent = 0; percent <= 100; percent += 4) {
        damage(file, percent / 100.0);
        const SnapshotAnswer answer = verify_answer({snapshot}, false);
        EXPECT_EQ(answer.exit_code, 1) << file << " at " << percent << " %";
        EXPECT_NE(answer.text.find("DAMAGED"), std::string::npos);
        put_file_bytes(file, good);
      }
      std::filesystem::remove(file);
      EXPECT_EQ(verify_answer({snapshot}, false).exit_code, 1);
      put_file_bytes(file, good);
      EXPECT_EQ(verify_answer({snapshot}, false).exit_code, 0);
    }
  }
}

TEST_F(SnapshotAnswers, VerifySaysWhatIsNoCheckpointAtAll) {
  const auto condition = [&](const std::filesystem::path& path) {
    const SnapshotAnswer answer = verify_answer({path}, true);
    EXPECT_EQ(answer.exit_code, 1);
    return json::parse(answer.text)[0];
  };
  EXPECT_EQ(condition(run() / "none.pt")["condition"], "absent");
  EXPECT_EQ(
      verify_answer({run() / "none.pt"}, false).text,
      concat("ABSENT   ", (run() / "none.pt").string(), "\n         no such file or directory\n"));

  const auto expect_module = [&](const std::filesystem::path& path, const std::string& words) {
    const json found = condition(path);
    EXPECT_EQ(found["condition"], "unknown") << found;
    const std::string problem = found["problems"][0];
    EXPECT_EQ(problem.find("a pickled module or other object, not a checkpoint"), 0u) << problem;
    EXPECT_NE(problem.find(words), std::string::npos) << problem;
  };
  const auto script = run() / "script.pt";
  torch::jit::Module module("Net");
  module.define("def forward(self, x):\n  return x\n");
  module.save(script);
  expect_module(script, "'__torch__.Net'");

  // As torch.save(module) begins.
  const std::string pickle = std::string("\x80\x02") + "c__main__\nNet\n)\x81.";
  std::string bytes;
  ArchiveWriter archive([&](const void* data, std::size_t count) {
    bytes.append(static_cast<const char*>(data), count);
  });
  archive.add(kPickleRecord, pickle.data(), pickle.size());
  archive.finish();
  const auto object = run() / "module.pt";
  put_file_bytes(object, bytes);
  expect_module(object, "'__main__.Net'");
  bytes[bytes.find("Net")] = 'J';
  put_file_bytes(object, bytes);
  EXPECT_EQ(condition(object)["condition"], "damaged");
}

TEST_F(SnapshotAnswers, ShowRefusesNamesAndTensorsThatAreLargerThanTheirFile) {
  const auto path = run() / "large.pt";
  const auto refusal = [&](const TensorDict& tensors) {
    lockstep::save(path, tensors);
    return message_of<UsageError>([&] { show_answer(path, false); });
  };
  EXPECT_NE(refusal({{std::string(5000, 'n'), at::ones({1})}}).find("5000 bytes"),
            std::string::npos);
  EXPECT_NE(refusal({{"a", at::ones({1}).expand({1 << 20})}}).find("more than its file"),
            std::string::npos);
}

TEST_F(SnapshotAnswers, ShowHasTensorsWithStatisticsAndTheOptimizersGroups) {
  net_->second->bias.data().fill_(3);
  net_->second->bias.data()[0].fill_(std::nan(""));
  for (const bool sharded : {false, true}) {
    const auto snapshot = save(sharded ? 2 : 1, sharded);
    const json shown = json::parse(show_answer(snapshot, true).text);
    EXPECT_EQ(shown["world_size"], 1);
    EXPECT_EQ(shown["optimizer_groups"][0]["lr"], 0.01);
    EXPECT_EQ(shown["optimizer_groups"][0]["params"], 6);
    const auto& tensors = shown["tensors"];
    const auto bias = std::ranges::find_if(
        tensors, [](const json& tensor) { return tensor["name"] == "model.second.bias"; });
    ASSERT_NE(bias, tensors.end());
    EXPECT_EQ((*bias)["dtype"], "float32");
    EXPECT_EQ((*bias)["shape"], json::array({2}));
    EXPECT_EQ((*bias)["mean"], 3);
    EXPECT_EQ((*bias)["non_finite"], 1);
    const std::string text = show_answer(snapshot, false).text;
    EXPECT_NE(text.find("optimizer group 0: lr 0.01 betas [0.9,0.999]"), std::string::npos) << text;
  }
  EXPECT_NE(message_of<UsageError>([&] {
              show_answer(run(), false);
            }).find("is a directory of 2 snapshots; name one"),
            std::string::npos);
}

TEST_F(SnapshotAnswers, DiffSaysWhatDiffersAndHowMuch) {
  const auto first = save(1);
  const auto same = save(2, true);
  net_->second->bias.data().add_(0.5);
  const auto second = save(3);
  const SnapshotAnswer answer = diff_answer({first, second}, false);
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_NE(answer.text.find("model.second.bias"), std::string::npos) << answer.text;
  const json found = json::parse(diff_answer({first, second}, true).text);
  ASSERT_EQ(found["differing"].size(), 1u);
  EXPECT_NEAR(found["differing"][0]["max_absolute"].get<double>(), 0.5, 1e-6);
  EXPECT_EQ(found["identical"].get<int>() + 1, found["tensors"].get<int>());
  EXPECT_EQ(diff_answer({first, same}, false).exit_code, 0)
      << diff_answer({first, same}, false).text;

  const auto weights = run() / "weights.safetensors";
  TensorDict others = state_dict(*net_);
  others[0] = {"first.other", at::ones({3})};
  others[1].second = at::ones({3});
  save_safetensors(weights, others);
  const json partly = json::parse(diff_answer({second, weights}, true).text);
  EXPECT_EQ(partly["missing"], json::array({"first.weight"}));
  EXPECT_EQ(partly["added"], json::array({"first.other"}));
  EXPECT_EQ(partly["reshaped"].size(), 1u);
  EXPECT_EQ(partly["identical"], 7);
  EXPECT_EQ(json::parse(diff_answer({first, second, "model"}, true).text)["tensors"], 9);
  EXPECT_EQ(json::parse(diff_answer({second, weights, "all"}, true).text)["identical"], 0);
  EXPECT_EQ(message_of<UsageError>([&] {
              diff_answer({first, second, "ema"}, true);
            }),
            "snapshot diff: --part='ema'; it is one of model, all");
}

TEST_F(SnapshotAnswers, DiffDoesNotCompareHowLongTwoRunsTook) {
  const auto run_of = [&](std::int64_t step, double samples, double seconds) {
    c10::impl::GenericDict registered = make_dict();
    const at::Tensor counts = at::tensor({2.0, samples, seconds}, at::kDouble);
    registered.insert_or_assign("trainer", tensor_dict_value({{"epochs_samples_seconds", counts}}));
    c10::impl::GenericDict values = make_dict();
    values.insert_or_assign("registered", registered);
    return save(step, false, {.values = values});
  };
  const auto one = run_of(1, 20, 1.5);
  const SnapshotAnswer equal = diff_answer({one, run_of(2, 20, 1.7)}, false);
  EXPECT_EQ(equal.exit_code, 0) << equal.text;
  EXPECT_NE(equal.text.find("not compared: the seconds that the Trainer took"), std::string::npos);
  EXPECT_EQ(diff_answer({one, run_of(3, 24, 1.5)}, false).exit_code, 1);
}

TEST_F(SnapshotAnswers, ExportWritesWhatOthersRead) {
  TensorDict averages{{"n_averaged", at::scalar_tensor(3, at::kLong)}};
  for (const auto& [name, tensor] : state_dict(*net_)) {
    averages.emplace_back("module." + name, at::full_like(tensor, 2));
  }
  c10::impl::GenericDict registered = make_dict();
  registered.insert_or_assign("average", tensor_dict_value(averages));
  c10::impl::GenericDict values = make_dict();
  values.insert_or_assign("registered", registered);
  const auto snapshot = save(1, true, {.values = values});
  const auto target = [&](const char* name) { return run() / name; };

  export_answer({.source = snapshot, .target = target("m.safetensors"), .format = "safetensors"});
  SmallNet net;
  load_state_dict(*net, read_state_dict(target("m.safetensors")));
  EXPECT_TRUE(same_weights(net, net_));
  export_answer({.source = snapshot, .target = target("m.pt"), .prefix = "module."});
  EXPECT_EQ(read_state_dict(target("m.pt"))[0].first, "module.first.weight");
  export_answer({.source = snapshot, .target = target("e.pt"), .part = "ema"});
  load_state_dict(*net, read_state_dict(target("e.pt")));
  EXPECT_TRUE(at::equal(net->first->weight, at::full({8, 4}, 2)));
  export_answer({.source = snapshot, .target = target("o.pt"), .part = "optimizer"});
  EXPECT_TRUE(find_value(load(target("o.pt")), "param_groups").isList());

  EXPECT_THROW(export_answer({.source = snapshot, .target = target("m.pt")}), UsageError);
  export_answer({.source = snapshot, .target = target("m.pt"), .force = true});
  EXPECT_NE(message_of<UsageError>([&] {
              export_answer({.source = target("m.pt"), .target = target("x.pt"), .part = "ema"});
            }).find("no averaged weights"),
            std::string::npos);
}

TEST_F(SnapshotAnswers, ConvertCopiesTheTextsBesideTheWeightsOfAFolder) {
  const auto hub = run() / "hub";
  save_checkpoint(hub, state_dict(*net_), {.extra_files = {{"config.json", "{\"a\": 1}"}}});
  put_file_bytes(hub / "merges.txt", "a b\n");
  put_file_bytes(hub / "pytorch_model.bin.index.json", "{}");
  put_file_bytes(hub / ".hidden.json", "{}");
  put_file_bytes(hub / "code.py", "");
  put_file_bytes(hub / "e\x1b[2Jvil.json", "{}");
  put_file_bytes(run() / "secret.txt", "secret");
  std::filesystem::create_directory(hub / "folder.json");
  std::filesystem::create_symlink("merges.txt", hub / "vocab.txt");
  std::filesystem::create_symlink("../secret.txt", hub / "leak.txt");
  std::filesystem::create_symlink("nothing", hub / "broken.json");
  std::filesystem::create_symlink("circle.json", hub / "circle.json");
  const auto files_of = [](const std::filesystem::path& folder) {
    std::set<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      const std::string name = file.path().filename();
      if (name.ends_with(".json") || name.ends_with(".txt")) names.insert(name);
    }
    return names;
  };
  const std::string answer =
      convert_answer({.source = hub, .target = run() / "dcp", .format = "dcp"}).text;
  EXPECT_NE(answer.find("\ncopied config.json, merges.txt, vocab.txt\n"
                        "not copied: leak.txt (a link out of the folder)\n"),
            std::string::npos)
      << answer;
  const std::set<std::string> copied{"config.json", "merges.txt", "vocab.txt"};
  EXPECT_EQ(files_of(run() / "dcp"), copied);
  EXPECT_EQ(file_bytes(run() / "dcp" / "config.json"), "{\"a\": 1}");
  EXPECT_EQ(file_bytes(run() / "dcp" / "vocab.txt"), "a b\n");
  EXPECT_FALSE(std::filesystem::is_symlink(run() / "dcp" / "vocab.txt"));

  convert_answer({.source = run() / "dcp", .target = run() / "back"});
  EXPECT_TRUE(files_of(run() / "back").contains("config.json"));
  const std::string one = convert_answer({.source = hub, .target = run() / "one.pt"}).text;
  EXPECT_EQ(std::ranges::count(one, '\n'), 1) << one;
  convert_answer({.source = save(1, true), .target = run() / "of-snapshot"});
  EXPECT_EQ(files_of(run() / "of-snapshot"),
            (std::set<std::string>{"model.safetensors.index.json"}));
}

TEST_F(SnapshotAnswers, ConvertSaysWhatIsTied) {
  const at::Tensor words = at::ones({4, 3});
  lockstep::save(run() / "tied.pt", TensorDict{{"words", words}, {"head", words}});
  const std::string answer =
      convert_answer({.source = run() / "tied.pt", .target = run() / "once"}).text;
  EXPECT_NE(answer.find(", 1 tensor, "), std::string::npos) << answer;
  EXPECT_NE(answer.find("\nleft out head, which is tied to words\n"), std::string::npos) << answer;
}

TEST_F(SnapshotAnswers, ExportRefusesWhatCannotWork) {
  const auto snapshot = save(1);
  for (const auto& [request, words] :
       {std::pair<ExportRequest, std::string>{{.target = "b"}, "unknown format of"},
        {{.target = "b.pt", .format = "onnx"}, "it is one of safetensors, pt"},
        {{.target = "b.pt", .part = "loss"}, "it is one of model, optimizer, ema"},
        {{.target = "b.safetensors", .part = "optimizer"}, "--format=pt"},
        {{.target = "b.pt", .part = "optimizer", .prefix = "module."}, "no --prefix"}}) {
    ExportRequest asked = request;
    asked.source = snapshot;
    const std::string message = message_of<UsageError>([&] { export_answer(asked); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
}

TEST_F(SnapshotAnswers, WeightsAreFoundBelowStateDictWhereOtherProgramsKeepThem) {
  const auto path = run() / "other.pt";
  c10::impl::GenericDict tree = make_dict();
  tree.insert_or_assign("epoch", std::int64_t{3});
  tree.insert_or_assign("state_dict", tensor_dict_value(state_dict(*net_)));
  lockstep::save(path, tree);
  export_answer({.source = path, .target = run() / "m.pt"});
  SmallNet net;
  load_state_dict(*net, read_state_dict(run() / "m.pt"));
  EXPECT_TRUE(same_weights(net, net_));
}

TEST_F(SnapshotAnswers, PruneKeepsTheNewestWholeOnes) {
  for (std::int64_t step = 1; step <= 5; ++step) save(step, step % 2 == 0);
  damage(run() / "snapshot-e0000-s00000003.pt", 0.5);
  damage(save(7), 0.5);
  std::filesystem::remove(save(6, true) / kManifestName);
  const SnapshotAnswer dry = prune_answer({.directory = run(), .keep = 2, .dry_run = true});
  EXPECT_NE(dry.text.find("would delete snapshot-e0000-s00000002, "), std::string::npos)
      << dry.text;
  EXPECT_EQ(json::parse(list_answer(run(), true).text).size(), 7u);
  prune_answer({.directory = run(), .keep = 2});
  std::vector<std::string> names;
  for (const json& row : json::parse(list_answer(run(), true).text)) names.push_back(row["name"]);
  EXPECT_EQ(names,
            (std::vector<std::string>{"snapshot-e0000-s00000007.pt", "snapshot-e0000-s00000005.pt",
                                      "snapshot-e0000-s00000004", "snapshot-e0000-s00000006"}));
  damage(run() / "snapshot-e0000-s00000005.pt", 0.5);
  damage(first_share(run() / "snapshot-e0000-s00000004"), 0.5);
  EXPECT_NE(message_of<UsageError>([&] {
              prune_answer({.directory = run(), .keep = 1});
            }).find("nothing is deleted"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
