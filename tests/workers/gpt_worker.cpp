// The C++ side of tests/python/parity/mingpt_parity.py: takes weights and batches from Python, trains on
// them, and writes what came of it for torch.load.
//   gpt_worker INPUT OUTPUT
// INPUT: {"model": state dict, "config": {n_layer, n_head, vocab_size, …}, "seed": int,
// "learning_rate_1e6": int, "batches": [steps, batch, block_size + 1]}.
#include <string>

#include <ATen/Context.h>
#include <ATen/ops/stack.h>

#include "examples/mingpt/optimizer.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/state_dict.h"
#include "models/gpt.h"

namespace lockstep::gpt_worker {
namespace {

int train(const std::string& input, const std::string& output) {
  const c10::IValue values = load(input);
  const c10::IValue config = entry(values, "config", input);
  const auto size = [&](const char* name) { return integer_entry(config, name, input); };

  at::manual_seed(static_cast<std::uint64_t>(integer_entry(values, "seed", input)));
  models::Gpt gpt(models::GptConfig{.n_layer = size("n_layer"),
                                    .n_head = size("n_head"),
                                    .n_embd = size("n_embd"),
                                    .vocab_size = size("vocab_size"),
                                    .block_size = size("block_size"),
                                    .embd_pdrop = 0,
                                    .resid_pdrop = 0,
                                    .attn_pdrop = 0});
  Snapshot result;
  for (const auto& [name, tensor] : state_dict(*gpt)) {
    result.extra.emplace_back("first." + name, tensor.clone());
  }

  load_state_dict(*gpt, tensor_dict(entry(values, "model", input), input), input);
  const double rate = static_cast<double>(integer_entry(values, "learning_rate_1e6", input)) / 1e6;
  auto optimizer = mingpt::make_optimizer(*gpt, {.learning_rate = rate});
  const at::Tensor batches = entry(values, "batches", input).toTensor();
  const auto length = batches.size(2) - 1;
  std::vector<at::Tensor> losses;
  for (const at::Tensor& batch : batches.unbind(0)) {
    optimizer.zero_grad();
    const auto [logits, loss] = gpt(batch.narrow(1, 0, length), batch.narrow(1, 1, length));
    if (losses.empty()) result.extra.emplace_back("logits", logits.detach().clone());
    losses.push_back(loss.detach());
    loss.backward();
    clip_grad_norm_(gpt->parameters(), 1.0);
    optimizer.step();
  }
  result.extra.emplace_back("losses", at::stack(losses));
  result.model = state_dict(*gpt);
  result.optimizer = optimizer_state_dict(optimizer);
  save_snapshot(output, result);
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  return run_main([&] {
    if (argc != 3) throw UsageError("usage: gpt_worker INPUT OUTPUT");
    return train(argv[1], argv[2]);
  });
}

}  // namespace lockstep::gpt_worker
