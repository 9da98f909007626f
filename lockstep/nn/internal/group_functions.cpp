#include "lockstep/nn/internal/group_functions.h"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

namespace lockstep::inline internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(ProcessGroup held) : group(std::move(held)) {}
  ProcessGroup group;
};

void keep_group(AutogradContext& context, const ProcessGroup& group) {
  context.saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
}

ProcessGroup group_of(AutogradContext& context) {
  const auto holder = context.saved_data["group"].toCapsule();
  return static_cast<const GroupHolder&>(*holder).group;
}

at::Tensor sum_over_group(const at::Tensor& values, const ProcessGroup& group) {
  at::Tensor sum = values.detach().clone(at::MemoryFormat::Contiguous);
  group.all_reduce(sum);
  return sum;
}

at::Tensor own_part(const at::Tensor& values, const ProcessGroup& group) {
  const Cut cut = cut_of(values.size(-1), group.rank(), group.world_size());
  return values.detach().narrow(-1, cut.begin, cut.size).contiguous();
}

// Parts may differ by one column: they travel at the size of the largest, columns first, so that
// each rank's lie together.
at::Tensor all_parts(const at::Tensor& part, std::int64_t size, const ProcessGroup& group) {
  const int ranks = group.world_size();
  const std::int64_t largest = cut_of(size, 0, ranks).size;
  const at::Tensor columns =
      at::constant_pad_nd(part.detach(), {0, largest - part.size(-1)}).movedim(-1, 0).contiguous();
  std::vector<std::int64_t> sizes = columns.sizes().vec();
  sizes[0] *= ranks;
  const at::Tensor all = at::empty(sizes, columns.options());
  group.all_gather_into_tensor(all, columns);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(all.narrow(0, rank * largest, cut_of(size, rank, ranks).size));
  }
  return at::cat(parts).movedim(0, -1).contiguous();
}

// Backward of each is the function of another, so that gradients can be differentiated again:
// copy and reduce are each other's, and so are gather and split.
struct CopyToGroup : Function<CopyToGroup> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const ProcessGroup& group) {
    keep_group(*context, group);
    return input.view_as(input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {reduce_from_group(gradients[0], group_of(*context)), at::Tensor()};
  }
};

struct ReduceFromGroup : Function<ReduceFromGroup> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const ProcessGroup& group) {
    keep_group(*context, group);
    return sum_over_group(input, group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {copy_to_group(gradients[0], group_of(*context)), at::Tensor()};
  }
};

struct GatherFromGroup : Function<GatherFromGroup> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, std::int64_t size,
                            const ProcessGroup& group) {
    keep_group(*context, group);
    return all_parts(input, size, group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {split_to_group(gradients[0], group_of(*context)), at::Tensor(), at::Tensor()};
  }
};

struct SplitToGroup : Function<SplitToGroup> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const ProcessGroup& group) {
    keep_group(*context, group);
    context->saved_data["size"] = input.size(-1);
    return own_part(input, group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const std::int64_t size = context->saved_data["size"].toInt();
    return {gather_from_group(gradients[0], size, group_of(*context)), at::Tensor()};
  }
};

}  // namespace

at::Tensor copy_to_group(const at::Tensor& input, const ProcessGroup& group) {
  // Where nothing is differentiated it is the input, and no view of it that looks like a tensor of
  // its own.
  const bool is_differentiated = input.requires_grad() && at::GradMode::is_enabled();
  return group.world_size() == 1 || !is_differentiated ? input : CopyToGroup::apply(input, group);
}

at::Tensor reduce_from_group(const at::Tensor& input, const ProcessGroup& group) {
  return group.world_size() == 1 ? input : ReduceFromGroup::apply(input, group);
}

at::Tensor gather_from_group(const at::Tensor& input, std::int64_t size,
                             const ProcessGroup& group) {
  return group.world_size() == 1 ? input : GatherFromGroup::apply(input, size, group);
}

at::Tensor split_to_group(const at::Tensor& input, const ProcessGroup& group) {
  return group.world_size() == 1 ? input : SplitToGroup::apply(input, group);
}

Cut cut_of(std::int64_t size, int rank, int world_size) {
  const std::int64_t each = size / world_size;
  const std::int64_t more = size % world_size;
  return {each * rank + std::min<std::int64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

}  // namespace lockstep::inline internal
