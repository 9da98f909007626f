#include "lockstep/optim/internal/fused_batch.h"

#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

namespace lockstep::inline internal {

void run_fused(const FusedBatch& batch, const SGDOptions& options) {
  at::_fused_sgd_(batch.parameters, batch.gradients, batch.states[0], options.weight_decay,
                  options.momentum, options.lr, options.dampening, options.nesterov,
                  options.maximize, /*is_first_step=*/batch.step == 1);
}

void run_fused(const FusedBatch& batch, const AdamOptions& options) {
  at::_fused_adam_(batch.parameters, batch.gradients, batch.states[0], batch.states[1],
                   batch.states[2], batch.steps, options.lr, std::get<0>(options.betas),
                   std::get<1>(options.betas), options.weight_decay, options.eps, options.amsgrad,
                   options.maximize);
}

void run_fused(const FusedBatch& batch, const AdamWOptions& options) {
  at::_fused_adamw_(batch.parameters, batch.gradients, batch.states[0], batch.states[1],
                    batch.states[2], batch.steps, options.lr, std::get<0>(options.betas),
                    std::get<1>(options.betas), options.weight_decay, options.eps, options.amsgrad,
                    options.maximize);
}

void run_fused(const FusedBatch& batch, const AdagradOptions& options) {
  at::_fused_adagrad_(batch.parameters, batch.gradients, batch.states[0], batch.steps, options.lr,
                      options.lr_decay, options.weight_decay, options.eps, options.maximize);
}

}  // namespace lockstep::inline internal
