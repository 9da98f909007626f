// ResNet-18 on CIFAR-100 with DataParallel: one process, each batch divided over replicas in
// threads.
//
//   dataparallel --nproc_per_node 2     # replicas, one on each CUDA device, else all on the CPU
#include "examples/cifar/cifar.h"
#include "models/resnet.h"

namespace {

void train(const cifar::Arguments& arguments) {
  const auto train_data = cifar::read_data(arguments, examples::CifarPart::kTrain);
  const auto test_data = cifar::read_data(arguments, examples::CifarPart::kTest);
  const auto group = lockstep::init_process_group();  // a job of one
  if (group.world_size() > 1) {
    throw lockstep::UsageError(
        "dataparallel is one process with several replicas, and was started as " +
        std::to_string(group.world_size()) + ": start it without a launcher, or take distributed");
  }

  torch::manual_seed(0);
  models::ResNet18 net(train_data.class_count());
  net->to(group.device());
  std::vector<c10::Device> devices;
  for (int i = 0; i < arguments.nproc_per_node; ++i) {
    devices.emplace_back(group.device().type(),
                         group.device().is_cuda() ? static_cast<c10::DeviceIndex>(i) : -1);
  }
  lockstep::DataParallel model(net, {.device_ids = devices});
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(arguments.lr).momentum(0.9));
  lockstep::DistributedSampler sampler(*train_data.size(), {.process_group = group});
  const auto loader = cifar::make_loader(train_data, sampler, arguments.batch_size);

  cifar::Report report(arguments, group.rank(), static_cast<std::int64_t>(sampler.size()),
                       arguments.batch_size);
  for (std::int64_t epoch = 0; epoch < arguments.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    cifar::Score score;
    for (auto& batch : *loader) {
      const auto labels = batch.target.to(group.device());
      optimizer.zero_grad();
      const auto logits = model(batch.data.to(group.device()));
      const auto loss = torch::cross_entropy_loss(logits, labels);
      loss.backward();
      optimizer.step();
      score.add(loss.detach(), logits.detach(), labels);
      report.step();
    }
    report.epoch(epoch, score, cifar::evaluate(*model, test_data, group));
  }
  report.end();
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    cifar::Arguments arguments;
    if (cifar::parse({.description = "Trains ResNet-18 on CIFAR-100 in one process:\n"
                                     "  dataparallel --nproc_per_node 2",
                      .processes = cifar::Program::Processes::kOne},
                     argc, argv, arguments))
      train(arguments);
    return 0;
  });
}
