#include "examples/mingpt/sample.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include "examples/mingpt/text.h"
#include "models/gpt_generate.h"

namespace mingpt {
namespace {

at::Tensor prompt_tokens(const std::string& prompt, const Vocabulary& vocabulary) {
  if (prompt.empty()) return at::zeros({1}, at::kLong);
  return vocabulary.encode(from_utf8(prompt, "the prompt"));
}

/// One thread while it lives: a step's matrices are so small that threads only wait for each other,
/// on a busy machine for forty times as long as the step takes.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_ = at::get_num_threads();
};

}  // namespace

std::string sample_text(models::GptImpl& gpt, const Vocabulary& vocabulary,
                        const SampleOptions& options) {
  const OneThread one_thread;
  const at::Device device = gpt.parameters().front().device();
  const at::Tensor tokens =
      models::generate(gpt, prompt_tokens(options.prompt, vocabulary).unsqueeze(0).to(device),
                       {.max_new_tokens = options.length,
                        .temperature = options.temperature,
                        .top_k = options.top_k,
                        .generator = at::detail::createCPUGenerator(options.seed)});
  return to_utf8(vocabulary.decode(tokens[0]));
}

}  // namespace mingpt
