// MNIST on any number of processes, of which any may be killed. The lines marked with ← make a
// program for one process distributed; print() and steps() replace std::cout and a counter.
//
//   lockstep run --standalone --nproc-per-node=2 --max-restarts=10 mnist data/mnist [EPOCHS]
//
// The folder holds the four files of MNIST, unpacked: train-images-idx3-ubyte and so on.
#include <string>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

namespace {

constexpr std::size_t kBatch = 64;
constexpr std::int64_t kLogInterval = 100;  // steps

struct NetImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor images) {
    images = torch::relu(torch::max_pool2d(first_->forward(images), 2));
    images = torch::relu(torch::max_pool2d(second_->forward(images), 2)).flatten(1);
    images = torch::dropout(torch::relu(hidden_->forward(images)), 0.5, is_training());
    return torch::log_softmax(digits_->forward(images), 1);
  }

 private:
  torch::nn::Conv2d first_ = register_module("first", torch::nn::Conv2d(1, 10, 5));
  torch::nn::Conv2d second_ = register_module("second", torch::nn::Conv2d(10, 20, 5));
  torch::nn::Linear hidden_ = register_module("hidden", torch::nn::Linear(320, 50));
  torch::nn::Linear digits_ = register_module("digits", torch::nn::Linear(50, 10));
};
TORCH_MODULE(Net);

// Of the whole test set, on each rank.
void test(Net& net, const at::Tensor& images, const at::Tensor& labels, std::int64_t epoch,
          const lockstep::Accelerator& accelerator) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const at::Tensor output = net->forward(images);
  const double loss = torch::nll_loss(output, labels).item<double>();
  const double right = output.argmax(1).eq(labels).to(torch::kDouble).mean().item<double>();
  net->train();
  accelerator.print("epoch ", epoch + 1, ", test loss ", loss, ", accuracy ", 100 * right, " %");
}

int train(const char* folder, std::int64_t epochs) {
  lockstep::Accelerator accelerator;  // ←
  using torch::data::datasets::MNIST;
  torch::manual_seed(1);
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  const MNIST tests(folder, MNIST::Mode::kTest);
  auto samples = MNIST(folder).map(torch::data::transforms::Stack<>());
  auto [model, optimizer, data] = accelerator.prepare(  // ←
      net, sgd, torch::data::make_data_loader(std::move(samples), kBatch));
  for (const std::int64_t epoch : accelerator.epochs(epochs)) {  // ←
    for (auto& batch : data) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model.forward(batch.data), batch.target);
      accelerator.backward(loss);  // ←
      optimizer.step();
      if (accelerator.steps() % kLogInterval == 0) {
        accelerator.print("step ", accelerator.steps(), ", loss ", loss.item<double>());
      }
    }
    test(net, tests.images(), tests.targets(), epoch, accelerator);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    return train(argc > 1 ? argv[1] : "data/mnist", argc > 2 ? std::stoll(argv[2]) : 10);
  });
}
