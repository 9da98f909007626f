#include "lockstep/fully_shard/internal/flat_parameter.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/fully_shard/internal/common_memory.h"

namespace lockstep::inline internal {
namespace {

// Parameters begin where allocators would put them: kernels that look at alignment compute the same
// bits as on parameters with memory of their own.
constexpr std::int64_t kAlignmentBytes = 64;

// Gradients of all ranks' chunks that are reduced at a time: caches hold it, and for a network it
// is long.
constexpr std::int64_t kWindowBytes = 4 << 20;
// Of each chunk a multiple of so many, whole cache lines.
constexpr std::int64_t kWindowElements = 64;

bool keeps_strides(const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense();
}

std::vector<std::int64_t> strides_of(const at::Tensor& parameter) {
  if (keeps_strides(parameter)) return parameter.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(parameter.dim()));
  std::int64_t stride = 1;
  for (std::size_t dim = strides.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= std::max<std::int64_t>(parameter.sizes()[dim], 1);
  }
  return strides;
}

void free_memory(const at::Tensor& tensor) {
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(static_cast<std::size_t>(0));
}

// The memory of another tensor, which it keeps.
void show_memory(const at::Tensor& tensor, const at::Tensor& other) {
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(
      other.mutable_data_ptr(), new at::Tensor(other),
      [](void* owner) { delete static_cast<at::Tensor*>(owner); }, tensor.device()));
  storage->set_nbytes(other.nbytes());
}

}  // namespace

FlatParameter::FlatParameter(const std::vector<NamedTensor>& parameters, ParameterWatcher& watcher,
                             Options options)
    : options_(std::move(options)), is_reduced_(parameters.size(), false) {
  const c10::NoGradGuard no_grad;
  const ProcessGroup& group = options_.group;
  std::vector<std::int64_t> elements;
  std::vector<at::Tensor> values;
  for (const auto& [name, parameter] : parameters) {
    elements.push_back(parameter.numel());
    values.push_back(parameter.detach());
    members_.push_back({.name = name,
                        .parameter = parameter,
                        .piece = {},
                        .sizes = parameter.sizes().vec(),
                        .strides = strides_of(parameter)});
  }
  const at::Tensor& first = parameters.front().tensor;
  const bool is_trained = first.requires_grad();
  const at::ScalarType dtype = first.scalar_type();
  layout_ = plan_flat_layout(elements, group.world_size(),
                             kAlignmentBytes / static_cast<std::int64_t>(first.element_size()));

  const at::Tensor whole = lay_out(values, dtype);
  if (options_.init_sync) {
    group.broadcast(whole, 0, {.name = options_.name});
    if (options_.replicas) options_.replicas.broadcast(whole, 0, {.name = options_.name});
  }
  const at::ScalarType gathered =
      at::isFloatingType(dtype) ? options_.param_dtype.value_or(dtype) : dtype;
  const auto own_chunk = [&](const at::Tensor& flat) {
    return flat.narrow(0, group.rank() * layout_.chunk, layout_.chunk);
  };
  if (is_in_common_memory(dtype, gathered)) {
    common_ = group.world_size() == 1 ? whole
                                      : tensor_of_all_ranks(group, layout_.total(), dtype,
                                                            concat("lockstep ", options_.name));
    shard_ = own_chunk(common_);
    shard_.copy_(own_chunk(whole));
  } else {
    shard_ = own_chunk(whole).clone();
  }
  for (std::size_t i = 0; i < members_.size(); ++i) {
    members_[i].piece = own_part(shard_, i).detach().requires_grad_(is_trained);
  }

  full_ = at::empty({layout_.total()}, whole.options().dtype(gathered));
  free_memory(full_);
  watch_.emplace(full_, watcher);
  const PauseWatching pause;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    member.parameter.mutable_grad().reset();
    member.parameter.set_data(
        watched_view(full_, member.sizes, member.strides, layout_.parameters[i].begin));
  }
}

bool FlatParameter::is_in_common_memory(at::ScalarType dtype, at::ScalarType gathered) const {
  const ProcessGroup& group = options_.group;
  return gathered == dtype && (group.world_size() == 1 || group.shares_memory());
}

at::Tensor FlatParameter::place_in(const at::Tensor& flat, std::size_t i) const {
  return flat.as_strided(members_[i].sizes, members_[i].strides, layout_.parameters[i].begin);
}

at::Tensor FlatParameter::own_part(const at::Tensor& chunk, std::size_t i) const {
  const int rank = options_.group.rank();
  return chunk.narrow(0, layout_.place_in_chunk(rank, i), layout_.piece(rank, i).size());
}

at::Tensor FlatParameter::lay_out(const std::vector<at::Tensor>& tensors,
                                  at::ScalarType dtype) const {
  const at::Tensor flat = at::zeros({layout_.total()}, tensors.front().options().dtype(dtype));
  for (std::size_t i = 0; i < tensors.size(); ++i) place_in(flat, i).copy_(tensors[i]);
  return flat;
}

const std::string& FlatParameter::name_of(const at::Tensor& view) const {
  return members_[layout_.parameter_at(view.storage_offset())].name;
}

std::int64_t FlatParameter::version() const {
  std::int64_t sum = 0;
  for (const Member& member : members_) sum += member.piece._version();
  return sum;
}

void FlatParameter::mark_changed() const {
  for (const Member& member : members_) member.parameter.unsafeGetTensorImpl()->bump_version();
}

void FlatParameter::begin_gather() {
  if (common_.defined()) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor sent = kept_.defined() ? kept_ : shard_.to(full_.scalar_type());
  // Not full_: the backend keeps the tensors of a gather that has failed, to which it may still
  // write, but full_ gets other memory.
  const at::Tensor arriving = at::empty({layout_.total()}, full_.options());
  gathering_ = gather_group().all_gather_into_tensor(arriving, sent,
                                                     {.async_op = true, .name = options_.name});
  show_memory(full_, arriving);
}

void FlatParameter::end_gather() {
  if (common_.defined()) {
    options_.group.barrier({.name = options_.name});
    show_memory(full_, common_);
    return;
  }
  gathering_.wait();  // A gather that has failed throws each time.
  gathering_ = {};
  kept_.reset();
}

void FlatParameter::drop_gather() noexcept {
  try {
    // The optimizer may change what is sent.
    std::exchange(gathering_, {}).wait();
  } catch (const std::exception&) {
    // The next collective of the group says so.
  }
  if (!common_.defined()) free_memory(full_);
}

void FlatParameter::reshard() {
  free_memory(full_);
}

void FlatParameter::keep_part() {
  if (!options_.reshard_group || common_.defined()) return;
  const c10::NoGradGuard no_grad;
  const std::int64_t part = layout_.total() / options_.reshard_group.world_size();
  kept_ = full_.narrow(0, options_.reshard_group.rank() * part, part).clone();
}

const ProcessGroup& FlatParameter::gather_group() const {
  return kept_.defined() ? options_.reshard_group : options_.group;
}

bool FlatParameter::gathers_in_background() const {
  return gather_group().world_size() > 1 && !gather_group().shares_memory();
}

void FlatParameter::gather_alone(const at::Tensor& values) {
  if (values.scalar_type() == full_.scalar_type()) return show_memory(full_, values);
  const c10::NoGradGuard no_grad;
  const at::Tensor converted = at::empty({layout_.total()}, full_.options());
  converted.narrow(0, 0, values.numel()).copy_(values);
  show_memory(full_, converted);
}

void FlatParameter::drop_pass() noexcept {
  gathering_ = {};
  free_memory(full_);
  drop_gradients();
  gradient_.reset();
  is_reduced_.assign(members_.size(), false);
}

void FlatParameter::reshard_over(const at::Tensor& values) {
  const c10::NoGradGuard no_grad;
  const ProcessGroup& group = options_.group;
  std::vector<std::int64_t> counts;
  for (const ElementRange& parameter : layout_.parameters) counts.push_back(parameter.size());
  layout_ = plan_flat_layout(counts, group.world_size(),
                             kAlignmentBytes / static_cast<std::int64_t>(values.element_size()));
  full_.unsafeGetTensorImpl()->set_sizes_contiguous({layout_.total()});
  const auto options = shard_.options();
  common_.reset();
  if (is_in_common_memory(values.scalar_type(), full_.scalar_type())) {
    common_ = group.world_size() == 1
                  ? at::zeros({layout_.total()}, options)
                  : tensor_of_all_ranks(group, layout_.total(), values.scalar_type(),
                                        concat("lockstep ", options_.name));
    shard_ = common_.narrow(0, group.rank() * layout_.chunk, layout_.chunk);
  } else {
    shard_ = at::zeros({layout_.chunk}, options);
  }
  const ElementRange own = own_elements();
  shard_.narrow(0, 0, own.size()).copy_(values.narrow(0, own.begin, own.size()));
  for (std::size_t i = 0; i < members_.size(); ++i) {
    at::Tensor& piece = members_[i].piece;
    const bool has_gradient = piece.grad().defined();
    piece.mutable_grad().reset();
    piece.set_data(own_part(shard_, i).detach());
    if (has_gradient) piece.mutable_grad() = at::zeros_like(piece);
  }
}

int FlatParameter::ranks() const {
  return options_.group.world_size() * (options_.replicas ? options_.replicas.world_size() : 1);
}

// As DistributedDataParallel computes the average: where memory is shared the sum is divided, in
// the same pass, elsewhere each rank's gradient before it is summed.
bool FlatParameter::group_divides() const {
  return !options_.gradient_divide_factor && !options_.replicas && options_.group.shares_memory();
}

// What the ranks reduce at a time: `window` of each rank's chunk, those of all ranks one behind the
// other.
void FlatParameter::fill_window(const at::Tensor& flat, ElementRange window,
                                const std::vector<at::Tensor>& gradients, double factor) const {
  std::int64_t place = 0;
  for (int rank = 0; rank < layout_.world_size; ++rank) {
    const std::int64_t chunk = rank * layout_.chunk;
    for (const auto& [i, elements] : layout_.parts_of({chunk + window.begin, chunk + window.end})) {
      at::Tensor target = flat.narrow(0, place, elements.size());
      place += elements.size();
      if (!i || !gradients[*i].defined()) {
        target.zero_();
        continue;
      }
      const std::int64_t first = elements.begin - layout_.parameters[*i].begin;
      const at::Tensor converted =
          gradients[*i].narrow(0, first, elements.size()).to(flat.scalar_type());
      if (factor == 1) {
        target.copy_(converted);
      } else {
        // A wrapped number keeps its precision: 1/3 as bfloat16 would scale each by 1.002.
        at::mul_out(target, converted, at::native::wrapped_scalar_tensor(factor));
      }
    }
  }
}

// The elements of a tensor of the parameter's shape, as they lie in the parameter's memory.
at::Tensor FlatParameter::in_order(std::size_t i, const at::Tensor& tensor) const {
  const Member& member = members_[i];
  if (tensor.strides() == member.strides) return tensor.as_strided({tensor.numel()}, {1});
  const at::Tensor ordered = at::empty({tensor.numel()}, tensor.options());
  ordered.as_strided(member.sizes, member.strides).copy_(tensor);
  return ordered;
}

void FlatParameter::reduce_gradients(double scale) {
  const c10::NoGradGuard no_grad;
  const ProcessGroup& group = options_.group;
  const auto dtype = options_.reduce_dtype.value_or(full_.scalar_type());
  const double divisor = options_.gradient_divide_factor.value_or(ranks());
  const double factor = group_divides() ? 1 : scale / divisor;
  const bool averages = group_divides() && scale == 1;

  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const at::Tensor& gradient = members_[i].parameter.grad();
    gradients.push_back(gradient.defined() ? in_order(i, gradient) : gradient);
  }
  const auto element = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t most =
      std::max<std::int64_t>(kWindowBytes / element / group.world_size() / kWindowElements, 1) *
      kWindowElements;
  at::Tensor part = at::empty({layout_.chunk}, shard_.options().dtype(dtype));
  const at::Tensor flat =
      at::empty({std::min(most, layout_.chunk) * group.world_size()}, part.options());
  std::int64_t begin = 0;
  do {  // Once even for nothing: ranks make the same calls.
    const ElementRange window{begin, std::min(begin + most, layout_.chunk)};
    const at::Tensor filled = flat.narrow(0, 0, window.size() * group.world_size());
    fill_window(filled, window, gradients, factor);
    at::Tensor reduced = part.narrow(0, begin, window.size());
    group.reduce_scatter_tensor(
        reduced, filled, {.op = averages ? ReduceOp::kAvg : ReduceOp::kSum, .name = options_.name});
    begin = window.end;
  } while (begin < layout_.chunk);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (gradients[i].defined()) is_reduced_[i] = true;
  }
  gradients.clear();
  drop_gradients();

  if (group_divides() && !averages) {
    part.mul_(at::native::wrapped_scalar_tensor(1.0 / group.world_size() * scale));
  }
  if (options_.replicas) options_.replicas.all_reduce(part, {.name = options_.name});
  part = part.to(shard_.scalar_type());
  if (gradient_.defined()) {
    gradient_.add_(part);
  } else {
    gradient_ = part;
  }
}

std::vector<std::uint8_t> FlatParameter::gradient_states() const {
  std::vector<std::uint8_t> states;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const bool is_left = members_[i].parameter.grad().defined();
    states.push_back(is_left ? kLeft : is_reduced_[i] ? kReduced : kNone);
  }
  return states;
}

void FlatParameter::set_gradients(const std::uint8_t* has_gradient) {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < members_.size() && gradient_.defined(); ++i) {
    if (has_gradient[i] == kNone) continue;
    // Below autograd's notice: detaching in place is refused to what it knows as a view.
    const at::AutoDispatchBelowADInplaceOrView guard;
    const at::Tensor part = own_part(gradient_, i);
    at::Tensor& gradient = members_[i].piece.mutable_grad();
    if (gradient.defined()) {
      gradient.add_(part);
    } else {
      gradient = part;
    }
  }
  gradient_.reset();
  is_reduced_.assign(members_.size(), false);
}

void FlatParameter::drop_gradients() {
  for (const Member& member : members_) member.parameter.mutable_grad().reset();
}

double FlatParameter::sum_of_squares() const {
  double sum = 0;
  for (const Member& member : members_) {
    const at::Tensor& gradient = member.piece.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    const double norm =
        at::linalg_vector_norm(gradient, 2, at::OptionalIntArrayRef(), false, at::kDouble)
            .item<double>();
    sum += norm * norm;
  }
  return sum;
}

at::Tensor FlatParameter::gather_pieces(const std::vector<at::Tensor>& pieces) const {
  const c10::NoGradGuard no_grad;
  const auto given = std::ranges::find_if(pieces, [](const auto& one) { return one.defined(); });
  const auto dtype = given == pieces.end() ? shard_.scalar_type() : given->scalar_type();
  const at::Tensor chunk = at::zeros({layout_.chunk}, shard_.options().dtype(dtype));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].defined()) own_part(chunk, i).copy_(pieces[i]);
  }
  const at::Tensor whole = at::empty({layout_.total()}, chunk.options());
  options_.group.all_gather_into_tensor(whole, chunk, {.name = options_.name});
  return whole;
}

at::Tensor FlatParameter::value_in(const at::Tensor& flat, std::size_t i) const {
  return place_in(flat, i).clone();
}

at::Tensor FlatParameter::piece_of(std::size_t i, const at::Tensor& value) const {
  const c10::NoGradGuard no_grad;
  const ElementRange held = layout_.piece(options_.group.rank(), i);
  return in_order(i, value).narrow(0, held.begin, held.size()).clone();
}

}  // namespace lockstep::inline internal
