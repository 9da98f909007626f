#include "lockstep/optim/optimizers.h"

#include <functional>
#include <sstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::testing {
namespace {

using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<at::Tensor>;

at::Tensor parameter_of(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::arange(c10::multiply_integers(sizes), at::kDouble)
      .sin()
      .view(sizes)
      .to(dtype)
      .requires_grad_();
}

void set_gradient(const at::Tensor& parameter, int step) {
  parameter.mutable_grad() = (at::arange(parameter.numel(), at::kDouble) * 0.3 + step)
                                 .cos()
                                 .view(parameter.sizes())
                                 .to(parameter.scalar_type());
}

template <class Optimizer>
void train(Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    for (auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) set_gradient(parameter, step);
    }
    optimizer.step();
  }
}

std::string usage_error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(FusedOptimizer, AGroupHasOptionsOfItsOwn) {
  const Tensors first = {parameter_of({3})};
  AdamW optimizer(first, {.lr = 0.5});
  optimizer.add_param_group(
      OptimizerParamGroup({parameter_of({2})}, group_options(AdamWOptions{.weight_decay = 0.25})));
  optimizer.add_param_group(OptimizerParamGroup({parameter_of({1})}));
  EXPECT_EQ(optimizer.options(1).lr, 1e-3);
  EXPECT_EQ(optimizer.options(1).weight_decay, 0.25);
  EXPECT_EQ(optimizer.options(2).lr, 0.5);
  optimizer.set_options({.lr = 0.125, .betas = {0.5, 0.75}}, 2);
  EXPECT_EQ(optimizer.param_groups()[2].options().get_lr(), 0.125);
  EXPECT_EQ(optimizer.options(2).betas, std::tuple(0.5, 0.75));
}

TEST(FusedOptimizer, ANumberIsTheLearningRateAndNothingIsOptions) {
  EXPECT_EQ(SGD({parameter_of({3})}, 0.5).options().lr, 0.5);
  EXPECT_EQ(SGD({parameter_of({3})}, {}).options().lr, 1e-3);
}

TEST(FusedOptimizer, RefusesOptionsOutOfRange) {
  const Tensors parameters = {parameter_of({3})};
  const auto expect_refused = [&](const auto& options, const std::string& text) {
    using Optimizer = FusedOptimizerOf<std::decay_t<decltype(options)>>;
    EXPECT_EQ(usage_error_of([&] { Optimizer(parameters, options); }), text);
    EXPECT_EQ(usage_error_of([&] { group_options(options); }), text);
  };
  expect_refused(AdamOptions{.lr = -1}, "Adam: lr=-1 is out of range; it must be at least 0");
  expect_refused(LionOptions{.betas = {0.9, 1}},
                 "Lion: betas=1 is out of range; it must be at least 0, and less than 1");
  expect_refused(AdadeltaOptions{.rho = 2},
                 "Adadelta: rho=2 is out of range; it must be at least 0, and at most 1");
  expect_refused(SGDOptions{.nesterov = true}, "SGD: nesterov needs a momentum and no dampening");
  expect_refused(NAdamOptions{.state_dtype = at::kDouble},
                 "NAdam: state_dtype is Double; it must be float32, or empty for the parameter's");
  const std::string refusal = usage_error_of([&] {
    Adam(std::vector<OptimizerParamGroup>{
        OptimizerParamGroup(parameters, group_options(AdamWOptions{}))});
  });
  EXPECT_EQ(refusal,
            "Adam: the options of parameter group 0 are another optimizer's; make them with "
            "group_options(AdamOptions{…})");
}

TEST(FusedOptimizer, RefusesGradientsByNameAndChangesNothing) {
  const at::Tensor first = parameter_of({3});
  const at::Tensor second = parameter_of({3});
  set_gradient(first, 0);
  second.mutable_grad() = at::ones({3}).to_sparse();
  const at::Tensor before = first.detach().clone();
  NAdam optimizer({first, second});
  EXPECT_EQ(usage_error_of([&] { optimizer.step(); }),
            "NAdam::step: parameter 1 of group 0 has a sparse gradient, which NAdam does not "
            "support with these options; use SGD without momentum and weight_decay, Adagrad "
            "without weight_decay, or dense gradients");
  EXPECT_TRUE(first.equal(before));
  EXPECT_TRUE(optimizer.state().empty());

  const at::Tensor complex = at::ones({2}, at::kComplexFloat).requires_grad_();
  complex.mutable_grad() = at::ones({2}, at::kComplexFloat);
  EXPECT_EQ(usage_error_of([&] { Adam({complex}).step(); }),
            "Adam::step: parameter 0 of group 0 is ComplexFloat; supported are float32, float64, "
            "bfloat16 and float16");
}

TEST(FusedOptimizer, RefusesShapesThatDiffer) {
  const at::Tensor parameter = parameter_of({3});
  Lion optimizer({parameter});
  train(optimizer, 0, 1);
  parameter.set_data(at::ones({5000}));
  EXPECT_EQ(usage_error_of([&] { optimizer.step(); }),
            "Lion::step: parameter 0 of group 0 has shape [5000], its gradient [3]; call "
            "zero_grad() and backward() after the parameter's shape changes");
  set_gradient(parameter, 0);
  EXPECT_EQ(usage_error_of([&] { optimizer.step(); }),
            "Lion::step: parameter 0 of group 0 has shape [5000], its state 'exp_avg' [3]; make a "
            "new optimizer after the parameter's shape changes");
  EXPECT_TRUE(parameter.equal(at::ones({5000})));
}

TEST(FusedOptimizer, UpdatesAllGroupsOrNone) {
  const at::Tensor first = parameter_of({3});
  const at::Tensor second = parameter_of({3});
  Adam optimizer({first}, {});
  optimizer.add_param_group(OptimizerParamGroup({second}));
  set_gradient(first, 0);
  second.mutable_grad() = at::ones({3}).to_sparse();
  const at::Tensor before = first.detach().clone();
  EXPECT_NE(usage_error_of([&] { optimizer.step(); }), "no error");
  EXPECT_TRUE(first.equal(before));
  EXPECT_TRUE(optimizer.state().empty());
}

template <class Optimizer, class Options>
void expect_twice_is_two_steps(const Options& options) {
  const at::Tensor twice = parameter_of({37});
  const at::Tensor once = parameter_of({37});
  Optimizer first({twice, twice}, options);
  Optimizer second({once}, options);
  set_gradient(twice, 0);
  set_gradient(once, 0);
  first.step();
  second.step();
  second.step();
  EXPECT_TRUE(twice.equal(once));
}

// As tied weights do in a module's parameters().
TEST(FusedOptimizer, AParameterMayOccurTwice) {
  expect_twice_is_two_steps<SGD>(SGDOptions{.momentum = 0.5, .dampening = 0.5});
  expect_twice_is_two_steps<Adam>(AdamOptions{});
  expect_twice_is_two_steps<RMSprop>(RMSpropOptions{.momentum = 0.5, .centered = true});
}

template <class Optimizer>
void expect_negative_views_are_read() {
  const at::Tensor viewed = parameter_of({37});
  const at::Tensor plain = parameter_of({37});
  set_gradient(plain, 0);
  viewed.mutable_grad() = at::_neg_view(plain.grad().neg());
  Optimizer({viewed}).step();
  Optimizer({plain}).step();
  EXPECT_TRUE(viewed.equal(plain));
}

TEST(FusedOptimizer, ReadsGradientsThatAreViewsOfNegatives) {
  expect_negative_views_are_read<Lion>();
  expect_negative_views_are_read<RAdam>();
  expect_negative_views_are_read<Adam>();
}

// 300² is no float16.
TEST(FusedOptimizer, SquaresSparseGradientsInTheStatesDtype) {
  const at::Tensor parameter = parameter_of({3, 2}, at::kHalf);
  parameter.mutable_grad() = at::full({3, 2}, 300, at::kHalf).to_sparse(1);
  Adagrad optimizer({parameter}, {.lr = 0.5, .state_dtype = at::kFloat});
  const at::Tensor before = parameter.detach().clone();
  optimizer.step();
  EXPECT_TRUE(at::allclose(before - parameter, at::full({3, 2}, 0.5, at::kHalf), 1e-2));
}

template <class Ours, class Theirs>
void expect_same_with_sparse_gradients(Ours ours, Theirs theirs) {
  for (int step = 0; step < 5; ++step) {
    for (torch::optim::Optimizer* const optimizer :
         {static_cast<torch::optim::Optimizer*>(&ours),
          static_cast<torch::optim::Optimizer*>(&theirs)}) {
      const at::Tensor rows = at::tensor({step, 2, step}, at::kLong).unsqueeze(0);
      optimizer->param_groups()[0].params()[0].mutable_grad() =
          at::sparse_coo_tensor(rows, at::arange(6, at::kFloat).view({3, 2}) + step, {6, 2});
      optimizer->step();
    }
    EXPECT_TRUE(ours.param_groups()[0].params()[0].equal(theirs.param_groups()[0].params()[0]))
        << "step " << step;
  }
}

TEST(FusedOptimizer, TakesSparseGradientsWherePyTorchDoes) {
  expect_same_with_sparse_gradients(SGD({parameter_of({6, 2})}, 0.1),
                                    torch::optim::SGD({parameter_of({6, 2})}, 0.1));
  expect_same_with_sparse_gradients(
      Adagrad({parameter_of({6, 2})}, {.lr = 0.1, .lr_decay = 0.1}),
      torch::optim::Adagrad({parameter_of({6, 2})},
                            torch::optim::AdagradOptions(0.1).lr_decay(0.1)));
}

// A column of a matrix, and gradients and states in other orders than the parameter.
template <class Optimizer>
void expect_layout_does_not_matter() {
  Tensors dense;
  Tensors strided;
  for (const std::int64_t rows : {5, 0, 37}) {
    dense.push_back(parameter_of({rows, 9}));
    const at::Tensor wide = at::zeros({rows, 18});
    const at::Tensor part = wide.slice(1, 0, 18, 2);
    part.copy_(dense.back().detach());
    strided.push_back(part.detach().requires_grad_());
    dense.push_back(parameter_of({rows, 9}));
    strided.push_back(dense.back().detach().t().contiguous().t().requires_grad_());
  }
  Optimizer first(dense);
  Optimizer second(strided);
  train(first, 0, 4);
  train(second, 0, 4);
  for (std::size_t i = 0; i < dense.size(); ++i) {
    EXPECT_TRUE(dense[i].equal(strided[i])) << "parameter " << i;
  }
}

TEST(FusedOptimizer, LayoutDoesNotMatter) {
  expect_layout_does_not_matter<SGD>();
  expect_layout_does_not_matter<AdamW>();
  expect_layout_does_not_matter<Adagrad>();
  expect_layout_does_not_matter<RAdam>();
  expect_layout_does_not_matter<RMSprop>();
}

TEST(FusedOptimizer, CountsItsChanges) {
  const at::Tensor with_gradient = parameter_of({3});
  const at::Tensor without = parameter_of({3});
  for (const auto& optimizer :
       {std::shared_ptr<torch::optim::Optimizer>(new SGD({with_gradient, without})),
        std::shared_ptr<torch::optim::Optimizer>(new Lion({with_gradient, without}))}) {
    set_gradient(with_gradient, 0);
    const auto version = with_gradient._version();
    const auto other_version = without._version();
    optimizer->step();
    EXPECT_GT(with_gradient._version(), version);
    EXPECT_EQ(without._version(), other_version);
  }
}

TEST(FusedOptimizer, CallsTheClosureWithGradientsOn) {
  const at::Tensor parameter = parameter_of({3});
  SGD optimizer({parameter}, 0.5);
  const at::NoGradGuard no_grad;
  const at::Tensor loss = optimizer.step([&] {
    const at::Tensor made = parameter.square().sum();
    made.backward();
    return made;
  });
  EXPECT_TRUE(loss.defined());
  EXPECT_TRUE(at::allclose(parameter, at::zeros({3})));
}

template <class Saved, class Loaded>
void copy_by_archive(Saved& saved, Loaded& loaded) {
  std::stringstream stream;
  torch::serialize::OutputArchive output;
  saved.save(output);
  output.save_to(stream);
  torch::serialize::InputArchive input;
  input.load_from(stream);
  loaded.load(input);
}

template <class Optimizer, class Options>
void expect_archive_continues(const Options& options) {
  const at::Tensor first = parameter_of({7, 5});
  Optimizer optimizer({first}, options);
  train(optimizer, 0, 5);
  const at::Tensor second = first.detach().clone().requires_grad_();
  Optimizer other({second});
  copy_by_archive(optimizer, other);
  train(optimizer, 5, 10);
  train(other, 5, 10);
  EXPECT_TRUE(first.equal(second));
}

TEST(FusedOptimizer, ContinuesFromAnArchive) {
  expect_archive_continues<SGD>(SGDOptions{.momentum = 0.5, .maximize = true});
  expect_archive_continues<Adam>(AdamOptions{.betas = {0.5, 0.75}, .amsgrad = true});
  expect_archive_continues<NAdam>(NAdamOptions{.momentum_decay = 0.5});
  expect_archive_continues<LAMB>(LAMBOptions{.lr = 0.25});
}

// Of LibTorch's optimizers, which round differently: as close as they are without the exchange.
template <class Ours, class Theirs, class Options, class TheirOptions>
void expect_archives_both_ways(const Options& options, const TheirOptions& their_options) {
  const at::Tensor ours = parameter_of({7, 5});
  const at::Tensor theirs = parameter_of({7, 5});
  Ours optimizer({ours}, options);
  Theirs reference({theirs}, their_options);
  train(optimizer, 0, 5);
  train(reference, 0, 5);
  const at::Tensor from_theirs = theirs.detach().clone().requires_grad_();
  Ours taken({from_theirs});
  copy_by_archive(reference, taken);
  const at::Tensor from_ours = ours.detach().clone().requires_grad_();
  Theirs given({from_ours}, 0.9);
  copy_by_archive(optimizer, given);
  train(reference, 5, 10);
  train(taken, 5, 10);
  train(given, 5, 10);
  EXPECT_TRUE(at::allclose(from_theirs, theirs, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(from_ours, theirs, 1e-5, 1e-6));
}

TEST(FusedOptimizer, ExchangesArchivesWithLibTorch) {
  expect_archives_both_ways<SGD, torch::optim::SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9},
                                                    torch::optim::SGDOptions(0.1).momentum(0.9));
  expect_archives_both_ways<Adam, torch::optim::Adam>(AdamOptions{.lr = 0.1, .amsgrad = true},
                                                      torch::optim::AdamOptions(0.1).amsgrad(true));
  expect_archives_both_ways<AdamW, torch::optim::AdamW>(AdamWOptions{.lr = 0.1},
                                                        torch::optim::AdamWOptions(0.1));
  expect_archives_both_ways<Adagrad, torch::optim::Adagrad>(AdagradOptions{.lr = 0.1},
                                                            torch::optim::AdagradOptions(0.1));
  expect_archives_both_ways<RMSprop, torch::optim::RMSprop>(
      RMSpropOptions{.lr = 0.01, .momentum = 0.5, .centered = true},
      torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
}

TEST(FusedOptimizer, RefusesArchivesAndStatesOfOthers) {
  Adam adam({parameter_of({3})});
  train(adam, 0, 1);
  Adam two({parameter_of({3}), parameter_of({3})});
  EXPECT_EQ(usage_error_of([&] { copy_by_archive(adam, two); }),
            "load Adam from an archive: group 0 has another number of parameters; load it into "
            "the optimizer that it was saved from");
  Adam larger({parameter_of({4})});
  EXPECT_NE(usage_error_of([&] { copy_by_archive(adam, larger); }), "no error");
  EXPECT_TRUE(larger.state().empty());
  AdamW decoupled({parameter_of({3})});
  EXPECT_EQ(usage_error_of([&] { decoupled.load_state_dict(adam.state_dict()); }),
            "load the optimizer's state dict, as AdamW: its 'decoupled_weight_decay' is False, "
            "which this optimizer does not offer; load it into the optimizer that it was saved "
            "from");
}

template <class Saved, class Loaded>
std::string refusal_of_archive() {
  FusedOptimizerOf<Saved> saved({parameter_of({3})});
  train(saved, 0, 1);
  FusedOptimizerOf<Loaded> loaded({parameter_of({3})});
  const std::string message = usage_error_of([&] { copy_by_archive(saved, loaded); });
  EXPECT_TRUE(loaded.state().empty());
  return message;
}

TEST(FusedOptimizer, RefusesArchivesOfOtherOptimizers) {
  EXPECT_EQ((refusal_of_archive<AdamOptions, AdamWOptions>()),
            "load AdamW from an archive: it is of Adam; load it into the optimizer that it was "
            "saved from");
  torch::optim::RMSprop rmsprop({parameter_of({3})});
  Adagrad adagrad({parameter_of({3})});
  EXPECT_EQ(usage_error_of([&] { copy_by_archive(rmsprop, adagrad); }),
            "load Adagrad from an archive: its options lack 'lr_decay'; load it into the optimizer "
            "that it was saved from");
  torch::optim::Adam adam({parameter_of({3})});
  Adamax adamax({parameter_of({3})});
  EXPECT_EQ(usage_error_of([&] { copy_by_archive(adam, adamax); }),
            "load Adamax from an archive: it has the option 'amsgrad'; load it into the optimizer "
            "that it was saved from");
  train(adam, 0, 1);
  auto& state = static_cast<torch::optim::AdamParamState&>(*adam.state().begin()->second);
  Adam ours({parameter_of({3})});
  state.step(-1);
  EXPECT_EQ(usage_error_of([&] { copy_by_archive(adam, ours); }),
            "load Adam from an archive: the state of parameter 0 of group 0 is of step -1; load it "
            "into the optimizer that it was saved from");
  state.step(1);
  static_cast<torch::optim::AdamOptions&>(adam.param_groups()[0].options()).amsgrad(true);
  EXPECT_EQ(usage_error_of([&] { copy_by_archive(adam, ours); }),
            "load Adam from an archive: the state of parameter 0 of group 0 has no "
            "'max_exp_avg_sq'; load it into the optimizer that it was saved from");
}

TEST(FusedOptimizer, RefusesWhatIsNoArchiveOfAnOptimizer) {
  std::stringstream stream;
  torch::save(at::ones({3}), stream);
  torch::serialize::InputArchive input;
  input.load_from(stream);
  Adam optimizer({parameter_of({3})});
  EXPECT_EQ(usage_error_of([&] {
              optimizer.load(input);
            }).find("load Adam from an archive: it is no archive of this optimizer ("),
            0u);
}

template <class Saved, class Loaded>
std::string refusal_of_state(const Saved& saved_options, const Loaded& loaded_options) {
  FusedOptimizerOf<Saved> saved({parameter_of({3})}, saved_options);
  train(saved, 0, 1);
  FusedOptimizerOf<Loaded> loaded({parameter_of({3})}, loaded_options);
  const std::string message = usage_error_of([&] { loaded.load_state_dict(saved.state_dict()); });
  EXPECT_TRUE(loaded.state().empty());
  return message;
}

TEST(FusedOptimizer, RefusesStatesOfOtherOptimizers) {
  const auto text = [](const std::string& name, const std::string& what) {
    return concat("load the optimizer's state dict, as ", name, ": ", what,
                  "; load it into the optimizer that it was saved from");
  };
  const std::string amsgrad = "its group has 'amsgrad', an option of another optimizer";
  EXPECT_EQ(refusal_of_state(AdamWOptions{}, LionOptions{}), text("Lion", amsgrad));
  EXPECT_EQ(refusal_of_state(AdamOptions{}, AdamaxOptions{}), text("Adamax", amsgrad));
  EXPECT_EQ(refusal_of_state(AdamOptions{}, LAMBOptions{}), text("LAMB", amsgrad));
  EXPECT_NE(refusal_of_state(AdamOptions{}, RAdamOptions{}), "no error");
  EXPECT_NE(refusal_of_state(NAdamOptions{}, RAdamOptions{}), "no error");
  // With the same options, but for the state.
  EXPECT_EQ(refusal_of_state(AdamaxOptions{}, LAMBOptions{}),
            text("LAMB", "the state of parameter 0 has 'exp_inf'"));
}

TEST(FusedOptimizer, RefusesStatesThatLackWhatOptionsNeed) {
  const auto refusal = [](auto optimizer, const char* option, const c10::IValue& value) {
    train(optimizer, 0, 1);
    const c10::IValue dict = optimizer.state_dict();
    dict.toGenericDict()
        .at("param_groups")
        .toListRef()[0]
        .toGenericDict()
        .insert_or_assign(option, value);
    return usage_error_of([&] { optimizer.load_state_dict(dict); });
  };
  const Tensors parameters = {parameter_of({3})};
  EXPECT_NE(refusal(Adam(parameters), "amsgrad", true).find("has no 'max_exp_avg_sq'"),
            std::string::npos);
  EXPECT_NE(refusal(RMSprop(parameters), "momentum", 0.5).find("has no 'momentum_buffer'"),
            std::string::npos);
  EXPECT_NE(refusal(RMSprop(parameters), "centered", true).find("has no 'grad_avg'"),
            std::string::npos);
  EXPECT_EQ(refusal(RMSprop(parameters), "name_of_the_program", "head"), "no error");
  EXPECT_EQ(refusal(SGD(parameters), "momentum", 0.5), "no error");
}

}  // namespace
}  // namespace lockstep::testing
