// ResNet-18 on CIFAR-100 in mixed precision: bfloat16, or float16 with a scaled loss.
//
//   distributed_amp --amp_dtype fp16
#include "examples/cifar/cifar.h"
#include "models/resnet.h"

namespace {

void train(const cifar::Arguments& arguments, const lockstep::ProcessGroup& group) {
  const auto train_data = cifar::read_data(arguments, lockstep::CifarPart::kTrain);
  const auto test_data = cifar::read_data(arguments, lockstep::CifarPart::kTest);

  torch::manual_seed(0);
  models::ResNet18 net(train_data.class_count());
  net->to(group.device());
  if (!arguments.no_sync_bn) lockstep::convert_sync_batchnorm(*net, {.process_group = group});
  lockstep::DistributedDataParallel model(net, {.process_group = group});
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(arguments.lr).momentum(0.9));
  lockstep::DistributedSampler sampler(*train_data.size(), {.group = group, .padding = false});
  const auto loader =
      cifar::make_loader(train_data, sampler, arguments.batch_size / group.world_size());

  const bool is_half = arguments.amp_dtype == "fp16";
  lockstep::GradScaler scaler({.enabled = is_half});  // bfloat16 has float32's range

  cifar::Report report(arguments, group.rank());
  for (std::int64_t epoch = 0; epoch < arguments.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    cifar::Score score;
    // Ranks may have different numbers of images: each counts once, and none is taken twice.
    auto batches = model.join(*loader);
    for (auto& batch : batches) {
      const auto labels = batch.target.to(group.device());
      optimizer.zero_grad();
      torch::Tensor logits;
      torch::Tensor loss;
      {
        const lockstep::Autocast autocast({.device_type = group.device().type(),
                                           .dtype = is_half ? torch::kHalf : torch::kBFloat16});
        logits = model(batch.data.to(group.device()));
        loss = torch::cross_entropy_loss(logits, labels);
      }
      model.backward(scaler.scale(loss), {.weight = static_cast<double>(labels.size(0))});
      scaler.step(optimizer);
      scaler.update();
      score.add(loss.detach(), logits.detach(), labels);
    }
    score.all_reduce(group);
    report.epoch(epoch, score, cifar::evaluate(*model, test_data, group));
  }
  report.end();
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    cifar::Arguments arguments;
    if (!cifar::parse("Trains ResNet-18 on CIFAR-100 in mixed precision.", argc, argv, arguments))
      return 0;
    cifar::run_in_processes(arguments,
                            [&](const lockstep::ProcessGroup& group) { train(arguments, group); });
    return 0;
  });
}
