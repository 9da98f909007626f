#include "lockstep/fetch/make_data_set.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "lockstep/base/cifar_format.h"
#include "lockstep/base/concat.h"
#include "lockstep/base/count_text.h"
#include "lockstep/base/error.h"
#include "lockstep/fetch/cifar_records.h"
#include "lockstep/fetch/crop_plan.h"
#include "lockstep/fetch/decode_image.h"
#include "lockstep/fetch/text_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string make_files(const Recipe& recipe, const fs::path& unpacked, const fs::path& target) {
  const std::vector<std::string> files = recipe_files(recipe);
  for (const std::string& file : files) {
    std::error_code error;
    fs::rename(unpacked / file, target / file, error);
    if (error) throw SystemError("move " + file + " to " + target.string(), error.value());
  }
  return count_text(files.size(), "file");
}

std::string make_text(const Recipe& recipe, const fs::path& unpacked, const fs::path& target) {
  std::string text;
  const std::vector<std::string> files = recipe_files(recipe);
  for (const std::string& file : files) {
    if (!text.empty()) text += "\n\n";
    text += read_text_file(unpacked / file);
    if (!text.ends_with('\n')) text += '\n';
  }
  write_text_file(target / recipe.text_file, text);
  return concat(text.size(), " bytes of text from ", files.size(), " files");
}

struct Photograph {
  RgbImage image;
  std::vector<CropPosition> positions;
};

// One square of each photograph in turn: any stretch of the file has all classes.
std::string records_in_turn(const std::vector<Photograph>& photographs) {
  std::size_t most = 0;
  for (const Photograph& photograph : photographs) {
    most = std::max(most, photograph.positions.size());
  }
  std::string records;
  for (std::size_t round = 0; round < most; ++round) {
    for (std::size_t label = 0; label < photographs.size(); ++label) {
      const Photograph& photograph = photographs[label];
      if (round >= photograph.positions.size()) continue;
      append_cifar_record(records, static_cast<std::uint8_t>(label), photograph.image,
                          photograph.positions[round]);
    }
  }
  return records;
}

std::string make_crops(const Recipe& recipe, const fs::path& unpacked, const fs::path& target) {
  const std::vector<std::string> files = recipe_files(recipe);
  std::vector<Photograph> train;
  std::vector<Photograph> test;
  std::string names;
  for (const std::string& file : files) {
    RgbImage image = decode_image(unpacked / file);
    CropPlan plan =
        plan_crops(image.width, image.height, kCifarSide, recipe.train_crops, recipe.test_crops);
    train.push_back({image, std::move(plan.train)});
    test.push_back({std::move(image), std::move(plan.test)});
    names += fs::path(file).stem().string() + "\n";
  }
  const std::string train_records = records_in_turn(train);
  const std::string test_records = records_in_turn(test);
  write_text_file(target / kCifarTrainFile, train_records);
  write_text_file(target / kCifarTestFile, test_records);
  write_text_file(target / kCifarFineNamesFile, names);
  write_text_file(target / kCifarCoarseNamesFile, "photograph\n");
  return concat(train_records.size() / kCifarRecordBytes, " training and ",
                test_records.size() / kCifarRecordBytes, " test images of ", files.size(),
                " classes");
}

}  // namespace

std::string make_data_set(const Recipe& recipe, const fs::path& unpacked, const fs::path& target) {
  switch (recipe.make) {
    case Recipe::Make::kFiles:
      return make_files(recipe, unpacked, target);
    case Recipe::Make::kText:
      return make_text(recipe, unpacked, target);
    case Recipe::Make::kCrops:
      return make_crops(recipe, unpacked, target);
  }
  return "";
}

}  // namespace lockstep
