#include "lockstep/ddp/distributed_data_parallel_options.h"

#include <cmath>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

void check_cap(const char* option, double mb) {
  if (mb > 0 && std::isfinite(mb)) return;
  throw UsageError(
      concat("DistributedDataParallel: ", option, "=", mb, " is not a positive number of MiB"));
}

template <class Items>
std::string join(const Items& items) {
  std::string text = "[";
  for (const auto& item : items) text += concat(text.size() > 1 ? "," : "", item);
  return text + "]";
}

}  // namespace

std::string describe(const DistributedDataParallelOptions& options) {
  const std::string cap =
      options.bucket_cap_mb ? concat(*options.bucket_cap_mb) : std::string("unset");
  return concat(
      "options bucket_cap_mb ", cap, " bucket_cap_mb_list ", join(options.bucket_cap_mb_list),
      " forward_sync_buffers ", options.forward_sync_buffers, " find_unused_parameters ",
      options.find_unused_parameters, " static_graph ", options.static_graph,
      " parameters_and_buffers_to_ignore ", join(options.parameters_and_buffers_to_ignore),
      " delay_all_reduce_named_params ", join(options.delay_all_reduce_named_params),
      " param_to_hook_all_reduce '", options.param_to_hook_all_reduce, "' gradient_norm ",
      options.gradient_norm, " exchange_dtype ",
      options.exchange_dtype ? c10::toString(*options.exchange_dtype) : "unset",
      " check_replicas_every ", options.check_replicas_every, " comm_hook ",
      options.comm_hook ? options.comm_hook->describe() : "none");
}

void check(const DistributedDataParallelOptions& options) {
  if (options.bucket_cap_mb) check_cap("bucket_cap_mb", *options.bucket_cap_mb);
  for (const double mb : options.bucket_cap_mb_list) check_cap("bucket_cap_mb_list", mb);
  if (options.bucket_cap_mb && !options.bucket_cap_mb_list.empty()) {
    throw UsageError(
        "DistributedDataParallel: bucket_cap_mb and bucket_cap_mb_list are both set; give one");
  }
  const auto& dtype = options.exchange_dtype;
  if (dtype && *dtype != at::kHalf && *dtype != at::kBFloat16) {
    throw UsageError(concat("DistributedDataParallel: exchange_dtype=", c10::toString(*dtype),
                            " is neither Half nor BFloat16; leave it unset to exchange gradients "
                            "as they are"));
  }
  if (dtype && options.comm_hook) {
    throw UsageError(
        "DistributedDataParallel: exchange_dtype and comm_hook are both set; a CompressHook around "
        "the hook makes its gradients travel in another dtype");
  }
  if (options.check_replicas_every < 0) {
    throw UsageError(
        concat("DistributedDataParallel: check_replicas_every=", options.check_replicas_every,
               " is not a number of steps; give 0 to compare replicas never"));
  }
  if (options.delay_all_reduce_named_params.empty() != options.param_to_hook_all_reduce.empty()) {
    throw UsageError(
        "DistributedDataParallel: delay_all_reduce_named_params and param_to_hook_all_reduce go "
        "together; give both or neither");
  }
}

}  // namespace lockstep
