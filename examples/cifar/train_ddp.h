#pragma once

#include <optional>

#include "examples/cifar/cifar.h"
#include "models/resnet.h"

/// Trains ResNet-18 with DistributedDataParallel and SyncBatchNorm, in one process of the job; with
/// a dtype in mixed precision: bfloat16, or float16 with a scaled loss.
inline void train_ddp(const cifar::Arguments& arguments, const lockstep::ProcessGroup& group,
                      std::optional<torch::ScalarType> autocast_dtype = std::nullopt) {
  const auto train_data = cifar::read_data(arguments, examples::CifarPart::kTrain);
  const auto test_data = cifar::read_data(arguments, examples::CifarPart::kTest);

  torch::manual_seed(0);
  models::ResNet18 net(train_data.class_count());
  net->to(group.device());
  if (!arguments.no_sync_bn) lockstep::convert_sync_batchnorm(*net, {.process_group = group});
  lockstep::DistributedDataParallel model(net, {.process_group = group});
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(arguments.lr).momentum(0.9));
  lockstep::DistributedSampler sampler(*train_data.size(),
                                       {.process_group = group, .padding = false});
  const auto part_size =
      cifar::divide_batch(arguments.batch_size, group.world_size(), arguments.grad_accu_steps);
  const auto loader = cifar::make_loader(train_data, sampler, part_size);
  // bfloat16 has the range of float32, and needs no scaling.
  lockstep::GradScaler scaler({.enabled = autocast_dtype == torch::kHalf});

  cifar::Report report(arguments, group.rank(), static_cast<std::int64_t>(sampler.size()),
                       part_size * arguments.grad_accu_steps);
  for (std::int64_t epoch = 0; epoch < arguments.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    cifar::Score score;
    // Ranks may have different numbers of images: each counts once, and none is taken twice.
    auto batches = model.join(*loader, {.gradient_accumulation_steps = arguments.grad_accu_steps});
    for (auto& batch : batches) {
      const auto labels = batch.target.to(group.device());
      torch::Tensor logits;
      torch::Tensor loss;
      {
        const auto accumulation = batches.accumulate();  // only the last part is exchanged
        {
          const lockstep::Autocast autocast({.device_type = group.device().type(),
                                             .dtype = autocast_dtype,
                                             .enabled = autocast_dtype.has_value()});
          logits = model(batch.data.to(group.device()));
          loss = torch::cross_entropy_loss(logits, labels);
        }
        model.backward(scaler.scale(loss), {.weight = static_cast<double>(labels.size(0))});
      }
      score.add(loss.detach(), logits.detach(), labels);
      if (!batches.is_last()) continue;
      scaler.step(optimizer);
      scaler.update();
      optimizer.zero_grad();
      report.step();
    }
    score.all_reduce(group);
    report.epoch(epoch, score, cifar::evaluate(*model, test_data, group));
  }
  report.end();
}
