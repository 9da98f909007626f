#include "tests/fuzz/differential/draw_graph.h"

#include <utility>

namespace lockstep::differential {
namespace {

int add(Plan& plan, ParameterPlan parameter) {
  plan.parameters.push_back(std::move(parameter));
  return static_cast<int>(plan.parameters.size()) - 1;
}

// A parameter of this shape that there is already, now and then, so that it has several uses.
int parameter_of(Random& random, Plan& plan, const std::vector<std::int64_t>& sizes) {
  if (random.chance(25)) {
    for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
      if (plan.parameters[i].sizes == sizes && random.chance(60)) return static_cast<int>(i);
    }
  }
  ParameterPlan parameter{.sizes = sizes, .dtype = plan.compute};
  if (random.chance(12)) {
    parameter.dtype = random.pick({at::kFloat, at::kDouble, at::kHalf, at::kBFloat16});
  }
  if (sizes.size() == 2 && random.chance(20)) {
    parameter.layout = random.pick({Layout::kTransposed, Layout::kSliced});
  }
  if (sizes.size() == 4 && random.chance(60)) parameter.layout = Layout::kChannelsLast;
  return add(plan, std::move(parameter));
}

View draw_view(Random& random) {
  return static_cast<View>(random.between(0, 5));
}

// Around the 256 KiB from which on a gradient travels by itself.
std::int64_t draw_large_size(Random& random) {
  return random.pick({65'535, 65'536, 65'537, 70'001, 32'768, 131'072});
}

OpPlan draw_wide(Random& random, Plan& plan) {
  const std::int64_t size = draw_large_size(random);
  const auto large = [&](std::vector<std::int64_t> sizes) {
    ParameterPlan parameter{.sizes = std::move(sizes), .dtype = plan.compute};
    if (parameter.sizes.size() == 2 && random.chance(40)) parameter.layout = Layout::kTransposed;
    return add(plan, std::move(parameter));
  };
  OpPlan op{.kind = OpKind::kWide, .view = draw_view(random)};
  op.parameter = size % 256 == 0 && random.chance(40) ? large({256, size / 256}) : large({size});
  op.second = op.view == View::kSqueeze ? large({1, size}) : large({size});
  if (random.chance(40)) op.third = op.view == View::kSqueeze ? large({1, size}) : large({size});
  return op;
}

OpPlan draw_op(Random& random, Plan& plan, OpKind kind) {
  OpPlan op{.kind = kind};
  const std::int64_t w = kWidth;
  switch (kind) {
    case OpKind::kLinear:
      op.parameter = parameter_of(random, plan, {w, w});
      if (random.chance(60)) op.second = parameter_of(random, plan, {w});
      break;
    case OpKind::kMatmul:
      op.parameter = parameter_of(random, plan, {w, w});
      break;
    case OpKind::kBias:
      op.view = draw_view(random);
      op.parameter = op.view == View::kSqueeze ? parameter_of(random, plan, {1, w})
                                               : parameter_of(random, plan, {w});
      break;
    case OpKind::kMultiply:
      op.parameter = parameter_of(random, plan, {w});
      break;
    case OpKind::kScalar:
      op.parameter = parameter_of(random, plan, {});
      break;
    case OpKind::kSum:
      op.parameter =
          parameter_of(random, plan, {random.pick<std::int64_t>({0, 0, 1, 13, 250, 1021})});
      break;
    case OpKind::kConvolution:
      op.parameter = parameter_of(random, plan, {w, 1, 2, 2});
      break;
    case OpKind::kEmbedding:
      op.sparse = random.chance(70);
      op.parameter = add(plan, {.sizes = {kWords, w}, .dtype = plan.compute});
      break;
    case OpKind::kComplex:
      op.parameter =
          add(plan, {.sizes = {w},
                     .dtype = plan.compute == at::kFloat ? at::kComplexFloat : at::kComplexDouble});
      break;
    case OpKind::kWide:
      return draw_wide(random, plan);
    case OpKind::kBuffer:
      plan.has_buffer = true;
      break;
    case OpKind::kBatchNorm:
      op.parameter = add(plan, {.sizes = {w}, .dtype = plan.compute});
      op.second = add(plan, {.sizes = {w}, .dtype = plan.compute});
      break;
    case OpKind::kSquare:
    case OpKind::kProduct:
      break;
  }
  return op;
}

// Common kinds come up in most plans, rare and slow ones in few.
OpKind draw_kind(Random& random, const Plan& plan) {
  if (random.chance(7)) return OpKind::kEmbedding;
  if (random.chance(8)) return OpKind::kWide;
  if (random.chance(4) && !plan.has(OpKind::kBatchNorm)) return OpKind::kBatchNorm;
  if (random.chance(4)) return OpKind::kComplex;
  return random.pick({OpKind::kLinear, OpKind::kLinear, OpKind::kLinear, OpKind::kMatmul,
                      OpKind::kBias, OpKind::kBias, OpKind::kMultiply, OpKind::kScalar,
                      OpKind::kSum, OpKind::kSum, OpKind::kConvolution, OpKind::kBuffer,
                      OpKind::kSquare, OpKind::kProduct});
}

void draw_checkpoint(Random& random, OpPlan& op) {
  if (op.kind == OpKind::kBatchNorm || op.kind == OpKind::kBuffer || op.kind == OpKind::kWide ||
      op.kind == OpKind::kProduct) {
    return;
  }
  op.is_checkpointed = random.chance(14);
  if (op.kind == OpKind::kEmbedding) return;
  if (random.chance(15)) op.uses = random.between(2, 3);
  op.later_uses = op.uses;
  if (op.is_checkpointed && random.chance(50)) op.later_uses = random.between(1, 3);
}

}  // namespace

void draw_graph(Random& random, Plan& plan) {
  OpPlan entry{.kind = OpKind::kLinear};
  entry.parameter = add(plan, {.sizes = {kWidth, kWidth}, .dtype = plan.compute});
  entry.second = add(plan, {.sizes = {kWidth}, .dtype = plan.compute});
  plan.ops.push_back(entry);
  const int count = random.between(1, 6);
  for (int i = 0; i < count; ++i) {
    OpPlan op = draw_op(random, plan, draw_kind(random, plan));
    draw_checkpoint(random, op);
    op.adds_input = random.chance(30);
    op.is_side = random.chance(20);
    plan.ops.push_back(std::move(op));
  }
  plan.syncs_batch_norm = plan.has(OpKind::kBatchNorm) && random.chance(65);
  if (plan.has(OpKind::kBatchNorm)) {
    plan.compute = at::kDouble;
    for (ParameterPlan& parameter : plan.parameters) {
      parameter.dtype = c10::isComplexType(parameter.dtype) ? at::kComplexDouble : at::kDouble;
    }
  }
  for (std::size_t i = 2; i < plan.parameters.size(); ++i) {
    ParameterPlan& parameter = plan.parameters[i];
    if (random.chance(8)) parameter.is_trained = false;
    if (random.chance(4)) parameter.is_ignored = true;
    if (random.chance(8) && parameter.is_trained) parameter.hook_factor = 2;
  }
  if (random.chance(10)) {
    for (std::size_t i = 2; i < plan.parameters.size(); ++i) {
      plan.parameters[i].is_delayed =
          plan.parameters[i].is_trained && !plan.parameters[i].is_ignored && random.chance(50);
    }
  }
}

void draw_second_complex(Random& random, Plan& plan) {
  if (!plan.has(OpKind::kComplex) || !random.chance(50)) return;
  plan.ops.push_back(draw_op(random, plan, OpKind::kComplex));
}

void draw_absences(Random& random, Plan& plan) {
  const unsigned all = (1U << plan.ranks) - 1;
  for (std::size_t i = 1; i < plan.ops.size(); ++i) {
    OpPlan& op = plan.ops[i];
    if (plan.delay_us > 0 && random.chance(30)) op.delays = random.next() & all;
    if (op.kind == OpKind::kBatchNorm || !random.chance(30)) continue;
    const bool is_always_so = random.chance(30);
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
      const unsigned ranks =
          random.pick<unsigned>({0, all, static_cast<unsigned>(random.next()) & all});
      op.left_out.push_back(step > 0 && is_always_so ? op.left_out[0] : ranks);
    }
  }
}

}  // namespace lockstep::differential
