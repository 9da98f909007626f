#include "lockstep/snapshot/checkpoint/safetensors_index.h"

#include <set>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/internal/file_name.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::json;

constexpr const char* kWeightMap = "weight_map";
constexpr int kMaxIndexDepth = 16;

/// Takes the JSON as it is read: {"weight_map": {tensor: file, …}} and any metadata beside it.
/// Returning false ends the reading.
class IndexReader : public nlohmann::json_sax<json> {
 public:
  SafetensorsIndex index;
  bool has_map = false;
  std::string problem = "it is no JSON";

  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_unsigned(number_unsigned_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool binary(binary_t&) override { return other(); }

  bool string(string_t& value) override {
    if (!in_map()) return other();
    if (!is_file_name(value)) {
      return refuse(concat("'", value, "' of tensor '", name_, "' is no file of the folder"));
    }
    index.files.emplace_back(name_, value);
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ == 1 && top_key_ == kWeightMap) {
      if (has_map) return refuse("it has two weight_maps");
      has_map = true;
    }
    return enter();
  }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return depth_ == 0 ? other() : enter(); }
  bool end_array() override { return leave(); }

  bool key(string_t& value) override {
    if (depth_ == 1) top_key_ = value;
    if (!in_map()) return true;
    name_ = value;
    return names_.insert(value).second || refuse(concat("tensor '", value, "' is in it twice"));
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    problem = concat("it is no JSON at byte ", position);
    return false;
  }

 private:
  bool in_map() const { return depth_ == 2 && top_key_ == kWeightMap; }

  bool enter() {
    if (in_map()) return refuse("its weight_map has more than names of files");
    if (++depth_ > kMaxIndexDepth) return refuse("it is nested too deep");
    return true;
  }

  bool leave() {
    --depth_;
    return true;
  }

  /// A value of no interest.
  bool other() {
    if (depth_ == 0) return refuse("it is no object");
    return in_map() || (depth_ == 1 && top_key_ == kWeightMap)
               ? refuse("its weight_map has more than names of files")
               : true;
  }

  bool refuse(const std::string& what) {
    problem = what;
    return false;
  }

  int depth_ = 0;
  std::string top_key_;
  std::string name_;
  std::set<std::string> names_;
};

}  // namespace

SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& source) {
  IndexReader reader;
  const bool is_read = json::sax_parse(text.begin(), text.end(), &reader);
  if (is_read && !reader.has_map) reader.problem = "it has no weight_map";
  if (!is_read || !reader.has_map) {
    throw CorruptFile(concat("read ", source, ": ", reader.problem,
                             "; it is damaged, or no index of safetensors: take another copy"));
  }
  return std::move(reader.index);
}

std::string safetensors_index_text(const SafetensorsIndex& index) {
  nlohmann::ordered_json document;
  document["metadata"]["total_size"] = index.total_bytes;
  document[kWeightMap] = nlohmann::ordered_json::object();
  for (const auto& [name, file] : index.files) document[kWeightMap][name] = file;
  return document.dump(2) + "\n";
}

}  // namespace lockstep::inline internal
