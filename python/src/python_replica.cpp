#include "python/src/python_replica.h"

#include <string_view>

#include "lockstep/ddp/internal/gradient_hooks.h"
#include "python/src/python_errors.h"

namespace lockstep::python {
namespace {

class Mirror final : public torch::nn::Module {
 public:
  Mirror() : torch::nn::Module("Mirror") {}

  /// The submodule that a dotted name stands for, made where it is missing, and the last part of
  /// the name.
  std::pair<torch::nn::Module*, std::string> place_of(std::string_view name) {
    Mirror* module = this;
    for (auto dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
      module = module->child(std::string(name.substr(0, dot)));
      name.remove_prefix(dot + 1);
    }
    return {module, std::string(name)};
  }

 private:
  Mirror* child(const std::string& name) {
    const auto known = named_children();
    if (const auto* found = known.find(name)) return static_cast<Mirror*>(found->get());
    return register_module(name, std::make_shared<Mirror>()).get();
  }
};

std::shared_ptr<torch::nn::Module> mirror(const NamedTensors& parameters,
                                          const NamedTensors& buffers) {
  auto root = std::make_shared<Mirror>();
  for (const auto& [name, tensor] : parameters) {
    const auto [module, last] = root->place_of(name);
    module->register_parameter(last, tensor, tensor.requires_grad());
  }
  for (const auto& [name, tensor] : buffers) {
    const auto [module, last] = root->place_of(name);
    module->register_buffer(last, tensor);
  }
  return root;
}

}  // namespace

PythonReplica::PythonReplica(const NamedTensors& parameters, const NamedTensors& buffers,
                             const DistributedDataParallelOptions& options)
    : module_(mirror(parameters, buffers)), replica_(module_, options) {
  internal::translate_errors_with(rethrow_for_python);
}

void PythonReplica::set_buffers(const NamedTensors& buffers) {
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : buffers) named.push_back({name, tensor});
  replica_.set_buffers(named);
}

void PythonReplica::before_forward(bool training) {
  if (module_->is_training() != training) module_->train(training);
  replica_.before_forward();
}

void PythonReplica::backward(const at::Tensor& loss, double weight, bool retain_graph) {
  replica_.backward(loss, {.weight = weight, .retain_graph = retain_graph});
}

}  // namespace lockstep::python
