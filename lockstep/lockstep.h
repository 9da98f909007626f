#pragma once

/// All that a program needs to train in parallel. LibTorch's own headers are not among it: include
/// <torch/torch.h>, or the narrower ones that the program uses.

#include "lockstep/amp/autocast.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/base/error.h"
#include "lockstep/base/run_main.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/hooks/all_reduce_hook.h"
#include "lockstep/ddp/hooks/compress_hook.h"
#include "lockstep/ddp/hooks/noop_hook.h"
#include "lockstep/ddp/hooks/post_local_sgd_hook.h"
#include "lockstep/ddp/hooks/power_sgd_hook.h"
#include "lockstep/ddp/hooks/quantize_hook.h"
#include "lockstep/ddp/periodic_model_averager.h"
#include "lockstep/nn/convert_sync_batchnorm.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/exponential_moving_average.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/train/progress_bar.h"
