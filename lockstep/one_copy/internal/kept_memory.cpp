#include "lockstep/one_copy/internal/kept_memory.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/one_copy/internal/hash.h"
#include "lockstep/one_copy/internal/pass_files.h"

namespace lockstep::inline internal {
namespace {

using Words = std::vector<std::int64_t>;

constexpr std::int64_t kNoType = -1;

std::uint64_t digest_of(const Words& words) {
  return hash_of(words.data(), words.size() * sizeof(std::int64_t));
}

void append_types(Words& words, const CopyMemory::StateTypes& types) {
  for (const auto& of_parameter : types) {
    for (const auto& type : of_parameter) {
      words.push_back(type ? static_cast<std::int64_t>(*type) : kNoType);
    }
  }
}

void append_bindings(Words& words, const std::vector<KeptMemory::Binding>& bindings) {
  for (const KeptMemory::Binding& binding : bindings) {
    words.push_back(static_cast<std::int64_t>(binding.parameter));
    words.push_back(static_cast<std::int64_t>(binding.place.memory));
    words.push_back(static_cast<std::int64_t>(binding.place.offset));
  }
}

// What a rank says when ranks compare.
struct Row {
  bool is_receiver = false;
  bool is_kept = false;
  std::int64_t shapes = 0;
  std::int64_t places = 0;
};

// How many receive, where all others keep the same; nothing: somebody does not.
std::optional<int> count_receivers(const std::vector<Row>& rows) {
  const auto keeper = std::ranges::find(rows, false, &Row::is_receiver);
  if (keeper == rows.end()) return std::nullopt;
  int receivers = 0;
  for (const Row& row : rows) {
    if (row.shapes != keeper->shapes) return std::nullopt;
    if (row.is_receiver) {
      ++receivers;
    } else if (!row.is_kept || row.places != keeper->places) {
      return std::nullopt;
    }
  }
  return receivers;
}

}  // namespace

KeptMemory::KeptMemory(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].is_cpu() || parameters_[i].numel() == 0) continue;
    const void* const data = parameters_[i].const_data_ptr();
    const std::shared_ptr<CopyMemory> memory = CopyMemory::find(data);
    if (!memory) continue;
    if (std::ranges::find(memories_, memory) == memories_.end()) memories_.push_back(memory);
    bindings_.push_back({.parameter = i, .place = find(data).value()});
  }
}

std::optional<KeptMemory::Place> KeptMemory::find(const void* data) const {
  const std::shared_ptr<CopyMemory> memory = CopyMemory::find(data);
  const auto found = std::ranges::find(memories_, memory);
  if (!memory || found == memories_.end()) return std::nullopt;
  return Place{.memory = static_cast<std::size_t>(found - memories_.begin()),
               .offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(data) -
                                                    memory->own().data())};
}

bool KeptMemory::has_all_trained() const {
  return std::ranges::count_if(parameters_, [](const at::Tensor& parameter) {
           return parameter.requires_grad() && parameter.numel() > 0;
         }) == std::ssize(bindings_);
}

std::uint64_t KeptMemory::digest_of_shapes() const {
  Words words;
  for (const at::Tensor& parameter : parameters_) {
    words.push_back(static_cast<std::int64_t>(parameter.scalar_type()));
    words.push_back(parameter.dim());
    words.insert(words.end(), parameter.sizes().begin(), parameter.sizes().end());
    words.insert(words.end(), parameter.strides().begin(), parameter.strides().end());
  }
  return digest_of(words);
}

std::uint64_t KeptMemory::digest_of_places() const {
  Words words;
  append_bindings(words, bindings_);
  for (const auto& memory : memories_) {
    words.push_back(static_cast<std::int64_t>(memory->id()));
    words.push_back(static_cast<std::int64_t>(memory->version()));
    append_types(words, memory->types());
  }
  return digest_of(words);
}

bool KeptMemory::is_kept() const {
  return !memories_.empty() &&
         std::ranges::all_of(memories_, [](const auto& memory) { return memory->is_kept(); });
}

std::optional<KeptMemory> keep_memory(const ProcessGroup& group, std::vector<at::Tensor> parameters,
                                      int source, bool is_receiver) {
  KeptMemory own(std::move(parameters));
  std::vector<Row> rows;
  for (const auto& row :
       gather_rows(group, {is_receiver ? 1 : 0, !is_receiver && own.is_kept() ? 1 : 0,
                           static_cast<std::int64_t>(own.digest_of_shapes()),
                           static_cast<std::int64_t>(own.digest_of_places())})) {
    rows.push_back({.is_receiver = row.at(0) != 0,
                    .is_kept = row.at(1) != 0,
                    .shapes = row.at(2),
                    .places = row.at(3)});
  }
  const std::optional<int> receivers = count_receivers(rows);
  if (!receivers) return std::nullopt;
  if (*receivers == 0) return own;
  if (group.rank() == source) {
    own.send(group, source, *receivers);
  } else {
    own.receive(group, source, *receivers, is_receiver);
  }
  return own;
}

// How many memories and bindings | of each memory: version, parameters, types of states | bindings.
void KeptMemory::send(const ProcessGroup& group, int source, int receivers) const {
  failpoint("recover.send");
  Words words{static_cast<std::int64_t>(memories_.size()),
              static_cast<std::int64_t>(bindings_.size())};
  std::vector<int> files;
  for (const auto& memory : memories_) {
    words.push_back(static_cast<std::int64_t>(memory->version()));
    words.push_back(static_cast<std::int64_t>(memory->types().size()));
    append_types(words, memory->types());
    for (const int file : memory->files()) files.push_back(file);
  }
  append_bindings(words, bindings_);
  const std::string text(reinterpret_cast<const char*>(words.data()),
                         words.size() * sizeof(std::int64_t));
  broadcast_text(group, text, source, "one copy, places");
  failpoint("recover.described");
  pass_files(group, {.source = source, .receivers = receivers, .files = files.size()}, files);
}

void KeptMemory::receive(const ProcessGroup& group, int source, int receivers, bool is_receiver) {
  const std::string text = broadcast_text(group, "", source, "one copy, places");
  Words words(text.size() / sizeof(std::int64_t));
  std::memcpy(words.data(), text.data(), text.size());
  auto word = words.begin();
  const auto next = [&] { return static_cast<std::uint64_t>(*word++); };
  const std::uint64_t memories = next();
  const std::uint64_t bindings = next();
  if (is_receiver) failpoint("recover.receive");
  std::vector<UniqueFd> files = pass_files(group,
                                           {.source = source,
                                            .receivers = receivers,
                                            .is_receiver = is_receiver,
                                            .files = CopyMemory::kFiles * memories},
                                           {});
  if (!is_receiver) return;
  memories_.clear();
  bindings_.clear();
  for (std::size_t i = 0; i < files.size(); i += CopyMemory::kFiles) {
    const std::uint64_t version = next();
    CopyMemory::StateTypes types(next());
    for (auto& of_parameter : types) {
      for (auto& type : of_parameter) {
        const std::int64_t code = *word++;
        if (code != kNoType) type = static_cast<c10::ScalarType>(code);
      }
    }
    CopyMemory::Files of_memory{.data = std::move(files[i]),
                                .gradients = std::move(files[i + 1]),
                                .past = std::move(files[i + 2])};
    memories_.push_back(CopyMemory::map(std::move(of_memory), std::move(types), version));
  }
  for (std::uint64_t i = 0; i < bindings; ++i) {
    const std::uint64_t parameter = next();
    const std::uint64_t memory = next();
    const Place place{.memory = memory, .offset = next()};
    bindings_.push_back({.parameter = parameter, .place = place});
    const at::Tensor& model = parameters_[parameter];
    std::byte* const data = memories_[memory]->own().data() + place.offset;
    views_[data] = at::from_blob(
        data, model.sizes(), model.strides(), [kept = memories_[memory]](void*) {},
        at::TensorOptions(model.scalar_type()));
  }
}

at::Tensor KeptMemory::storage_at(const Place& place, std::uint64_t bytes) const {
  const std::shared_ptr<CopyMemory>& memory = memories_.at(place.memory);
  LOCKSTEP_ASSERT(place.offset + bytes <= memory->own().bytes());
  std::byte* const data = memory->own().data() + place.offset;
  const auto count = static_cast<std::int64_t>(bytes);
  // LibTorch copies nothing from a parameter to itself, which it knows by the storage.
  if (const auto view = views_.find(data); view != views_.end()) {
    return at::empty({0}, at::kByte).set_(view->second.storage(), 0, {count}, {1});
  }
  return at::from_blob(
      data, {count}, [memory](void*) {}, at::TensorOptions(at::kByte));
}

void KeptMemory::bind() {
  for (const Binding& binding : bindings_) {
    const Place& place = binding.place;
    std::byte* const data = memories_[place.memory]->own().data() + place.offset;
    parameters_[binding.parameter].set_data(views_.at(data));
  }
  for (const auto& memory : memories_) memory->release();
}

}  // namespace lockstep::inline internal
