#include "lockstep/snapshot/internal/safetensors_header.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/pickle/pickle_nodes.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 19> kSafetensorsDtypes{{
    {"BOOL", c10::ScalarType::Bool},
    {"U8", c10::ScalarType::Byte},
    {"I8", c10::ScalarType::Char},
    {"U16", c10::ScalarType::UInt16},
    {"I16", c10::ScalarType::Short},
    {"U32", c10::ScalarType::UInt32},
    {"I32", c10::ScalarType::Int},
    {"U64", c10::ScalarType::UInt64},
    {"I64", c10::ScalarType::Long},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"F8_E4M3FNUZ", c10::ScalarType::Float8_e4m3fnuz},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
    {"F8_E5M2FNUZ", c10::ScalarType::Float8_e5m2fnuz},
    {"F8_E8M0", c10::ScalarType::Float8_e8m0fnu},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"F32", c10::ScalarType::Float},
    {"F64", c10::ScalarType::Double},
    {"C64", c10::ScalarType::ComplexFloat},
}};
/// Those of the format whose elements are no whole bytes.
constexpr std::array<std::string_view, 3> kForeignDtypes{"F4", "F6_E2M3", "F6_E3M2"};

constexpr const char* kMetadataKey = "__metadata__";
constexpr std::size_t kHeaderAlignment = 8;

std::string_view format_dtype(c10::ScalarType dtype) {
  for (const auto& [name, known] : kSafetensorsDtypes) {
    if (known == dtype) return name;
  }
  return "";
}

/// Nothing when the number of bytes does not fit, counted as if no dimension was zero: LibTorch
/// multiplies them so for the strides.
std::optional<std::uint64_t> tensor_bytes(const SafetensorsEntry& entry) {
  std::int64_t elements = static_cast<std::int64_t>(c10::elementSize(entry.dtype));
  for (const std::int64_t size : entry.shape) {
    if (__builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements)) return {};
  }
  const bool is_empty = std::ranges::find(entry.shape, 0) != entry.shape.end();
  return is_empty ? 0 : static_cast<std::uint64_t>(elements);
}

/// Takes the JSON as it is read: {name: {"dtype": …, "shape": […], "data_offsets": [b, e]}, …,
/// "__metadata__": {key: text, …}} and nothing else. Returning false ends the reading.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  SafetensorsHeader header;
  std::string problem = "its header is no JSON";
  /// A dtype of the format that LibTorch does not have.
  std::string foreign_dtype;

  bool null() override { return refuse("a null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a fraction"); }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > INT64_MAX) return refuse("a dimension beyond 63 bits");
      if (entry_.shape.size() == kMaxDimensions) return refuse("a 65th dimension");
      entry_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::kOffsets && offsets_ < 2) {
      (offsets_++ == 0 ? entry_.begin_bytes : entry_.end_bytes) = value;
    } else {
      return refuse("a number");
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header.metadata[key_] = value;
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return refuse("a string");
    const auto* const known = std::ranges::find_if(
        kSafetensorsDtypes, [&](const auto& pair) { return pair.first == value; });
    if (std::ranges::find(kForeignDtypes, value) != kForeignDtypes.end()) foreign_dtype = value;
    if (known == kSafetensorsDtypes.end()) return refuse("an unknown dtype");
    entry_.dtype = known->second;
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) return enter(Place::kTop);
    if (place_ != Place::kTop) return refuse("an object");
    if (name_ == kMetadataKey) return enter(Place::kMetadata);
    entry_ = {.name = name_};
    offsets_ = 0;
    return enter(Place::kTensor);
  }

  bool key(string_t& value) override {
    if (!keys_.insert(value).second) return refuse(concat("a second '", value, "'"));
    (place_ == Place::kTop ? name_ : key_) = value;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (keys_ != std::set<std::string>{"data_offsets", "dtype", "shape"} || offsets_ != 2) {
        return refuse("no dtype, shape and two data_offsets");
      }
      header.tensors.push_back(std::move(entry_));
    }
    place_ = Place::kTop;
    keys_ = std::move(names_);
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor) return refuse("an array");
    if (key_ == "shape") {
      place_ = Place::kShape;
    } else if (key_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      return refuse("an array");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    problem = concat("its header is no JSON at byte ", position);
    return false;
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };

  bool enter(Place place) {
    place_ = place;
    names_ = std::exchange(keys_, {});
    return true;
  }

  bool refuse(const std::string& what) {
    problem = concat("its header has ", what, " where none can be, at '", name_, "'");
    return false;
  }

  Place place_ = Place::kStart;
  std::string name_;  ///< The last key of the outer object.
  std::string key_;   ///< The last of an inner one.
  /// Of the object that is read, and of the one around it.
  std::set<std::string> keys_;
  std::set<std::string> names_;
  SafetensorsEntry entry_;
  int offsets_ = 0;
};

[[noreturn]] void refuse_header(const std::string& source, const std::string& problem) {
  throw CorruptFile(
      concat(source, ": ", problem, "; it is damaged, or no safetensors file: take another copy"));
}

void check_places(const std::vector<SafetensorsEntry>& tensors, std::uint64_t data_bytes,
                  const std::string& source) {
  std::vector<const SafetensorsEntry*> order;
  for (const SafetensorsEntry& entry : tensors) {
    const auto bytes = tensor_bytes(entry);
    if (entry.end_bytes < entry.begin_bytes || entry.end_bytes > data_bytes || !bytes ||
        *bytes != entry.end_bytes - entry.begin_bytes) {
      refuse_header(source, concat("tensor '", entry.name, "' has not the bytes of its shape"));
    }
    order.push_back(&entry);
  }
  std::ranges::sort(order, {}, [](const SafetensorsEntry* entry) {
    return std::pair(entry->begin_bytes, entry->end_bytes);
  });
  std::uint64_t next = 0;
  for (const SafetensorsEntry* entry : order) {
    if (entry->begin_bytes != next) {
      refuse_header(source, concat("tensor '", entry->name, "' begins at byte ", entry->begin_bytes,
                                   " instead of ", next, " of the data"));
    }
    next = entry->end_bytes;
  }
  if (next != data_bytes) {
    refuse_header(source, concat("its tensors take ", next, " bytes, and it has ", data_bytes));
  }
}

}  // namespace

bool is_safetensors_dtype(c10::ScalarType dtype) {
  return !format_dtype(dtype).empty();
}

void place_safetensors(std::vector<SafetensorsEntry>& tensors) {
  std::vector<SafetensorsEntry*> order;
  for (SafetensorsEntry& entry : tensors) order.push_back(&entry);
  std::ranges::stable_sort(order, std::ranges::greater(), [](const SafetensorsEntry* entry) {
    return c10::elementSize(entry->dtype);
  });
  std::uint64_t next = 0;
  for (SafetensorsEntry* entry : order) {
    entry->begin_bytes = next;
    next += tensor_bytes(*entry).value();
    entry->end_bytes = next;
  }
}

std::string safetensors_header_text(const SafetensorsHeader& header) {
  std::string text = "{";
  try {
    if (!header.metadata.empty()) {
      text += concat(json(kMetadataKey).dump(), ":", json(header.metadata).dump());
    }
    for (const SafetensorsEntry& entry : header.tensors) {
      if (entry.name == kMetadataKey) {
        throw UsageError(
            concat("save safetensors: a tensor is called '", kMetadataKey,
                   "', where the format has its metadata; rename it, or choose another "
                   "format"));
      }
      // An object of nlohmann would put them in the order of their names, not of the module.
      text += concat(text.size() == 1 ? "" : ",", json(entry.name).dump(), ":{\"dtype\":\"",
                     format_dtype(entry.dtype), "\",\"shape\":", json(entry.shape).dump(),
                     ",\"data_offsets\":[", entry.begin_bytes, ",", entry.end_bytes, "]}");
    }
  } catch (const json::type_error&) {
    throw UsageError("save safetensors: a name or metadata is no UTF-8; rename it");
  }
  text += "}";
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  return text;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           const std::string& source) {
  HeaderReader reader;
  const bool is_read = text.starts_with("{") && json::sax_parse(text.begin(), text.end(), &reader);
  if (!reader.foreign_dtype.empty()) {
    throw UsageError(concat(source, ": it has tensors of dtype ", reader.foreign_dtype,
                            ", which LibTorch does not have; convert it with Python"));
  }
  if (!is_read) refuse_header(source, reader.problem);
  check_places(reader.header.tensors, data_bytes, source);
  return std::move(reader.header);
}

}  // namespace lockstep::inline internal
