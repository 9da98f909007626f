// ResNet-18 on CIFAR-100, each process's batch in parts: gradients are exchanged after the last.
//
//   distributed_gradient_accumulation --grad_accu_steps 4
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
  const auto loader = cifar::make_loader(
      train_data, sampler, arguments.batch_size / group.world_size() / arguments.grad_accu_steps);

  cifar::Report report(arguments, group.rank());
  for (std::int64_t epoch = 0; epoch < arguments.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    cifar::Score score;
    // Ranks may have different numbers of images: each counts once, and none is taken twice.
    auto batches = model.join(*loader, {.accumulation_steps = arguments.grad_accu_steps});
    for (auto& batch : batches) {
      const auto labels = batch.target.to(group.device());
      {
        const auto accumulation = batches.accumulate();  // only the last part is exchanged
        const auto logits = model(batch.data.to(group.device()));
        const auto loss = torch::cross_entropy_loss(logits, labels);
        model.backward(loss, {.weight = static_cast<double>(labels.size(0))});
        score.add(loss.detach(), logits.detach(), labels);
      }
      if (!batches.is_last()) continue;
      optimizer.step();
      optimizer.zero_grad();
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
    if (!cifar::parse("Trains ResNet-18 on CIFAR-100, adding up gradients.", argc, argv, arguments))
      return 0;
    cifar::run_in_processes(arguments,
                            [&](const lockstep::ProcessGroup& group) { train(arguments, group); });
    return 0;
  });
}
