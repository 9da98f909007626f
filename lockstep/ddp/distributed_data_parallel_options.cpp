#include "lockstep/ddp/distributed_data_parallel_options.h"

#include <algorithm>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep {
namespace {

// Far beyond any model, and as bytes within an int64.
constexpr double kMostMb = 1e9;

void check_cap(const char* option, double mb) {
  if (mb > 0 && mb <= kMostMb) return;
  throw UsageError(concat("DistributedDataParallel: ", option, "=", mb,
                          " is not a number of MiB; it must be above 0 and at most ", kMostMb));
}

template <class Items>
std::string join(const Items& items) {
  std::string text = "[";
  for (const auto& item : items) text += concat(text.size() > 1 ? "," : "", item);
  return text + "]";
}

void check_delayed(const DistributedDataParallelOptions& options) {
  const auto& delayed = options.delay_all_reduce_named_params;
  const std::string& until = options.param_to_hook_all_reduce;
  if (delayed.empty() != until.empty()) {
    throw UsageError(
        "DistributedDataParallel: delay_all_reduce_named_params and param_to_hook_all_reduce go "
        "together; give both or neither");
  }
  if (std::find(delayed.begin(), delayed.end(), until) != delayed.end()) {
    throw UsageError(concat("DistributedDataParallel: delay_all_reduce_named_params holds '", until,
                            "', which is param_to_hook_all_reduce, so that it would wait for "
                            "itself; name it in one of them"));
  }
}

void check_hook(const DistributedDataParallelOptions& options) {
  const CommHook& hook = *options.comm_hook;
  if (options.exchange_dtype) {
    throw UsageError(
        "DistributedDataParallel: exchange_dtype and comm_hook are both set; wrap the hook in a "
        "CompressHook to exchange its gradients in another dtype");
  }
  if (options.gradient_norm && !hook.keeps_replicas_equal()) {
    throw UsageError(concat("DistributedDataParallel: gradient_norm with comm_hook '",
                            hook.describe(),
                            "', which leaves different gradients on each rank, without a common "
                            "norm; leave one of them out"));
  }
  if (options.check_replicas_every > 0 && !hook.keeps_replicas_equal()) {
    throw UsageError(concat("DistributedDataParallel: check_replicas_every=",
                            options.check_replicas_every, " with comm_hook '", hook.describe(),
                            "', which lets replicas differ between steps; leave one of them out"));
  }
}

void check_one_copy(const DistributedDataParallelOptions& options) {
  const auto refuse_if = [](bool is_set, const char* option, const char* reason) {
    if (!is_set) return;
    throw UsageError(concat("DistributedDataParallel: one_copy_per_machine with ", option, ", ",
                            reason, "; leave one of them out"));
  };
  refuse_if(options.comm_hook != nullptr, "comm_hook", "which averages gradients in backward()");
  refuse_if(options.exchange_dtype.has_value(), "exchange_dtype",
            "although gradients are averaged where they lie");
  refuse_if(options.measure_exchange, "measure_exchange",
            "although backward() exchanges no gradients");
}

}  // namespace

std::string internal::describe(const DistributedDataParallelOptions& options) {
  std::ostringstream text;
  text << std::boolalpha;
  const auto add = [&](const char* option, const auto& value) {
    text << "option " << option << "=" << value << "\n";
  };
  if (options.bucket_cap_mb) add("bucket_cap_mb", *options.bucket_cap_mb);
  if (!options.bucket_cap_mb) add("bucket_cap_mb", "unset");
  add("bucket_cap_mb_list", join(options.bucket_cap_mb_list));
  add("init_sync", options.init_sync);
  add("forward_sync_buffers", options.forward_sync_buffers);
  add("find_unused_parameters", options.find_unused_parameters);
  add("static_graph", options.static_graph);
  add("parameters_and_buffers_to_ignore", join(options.parameters_and_buffers_to_ignore));
  add("delay_all_reduce_named_params", join(options.delay_all_reduce_named_params));
  add("param_to_hook_all_reduce", concat("'", options.param_to_hook_all_reduce, "'"));
  add("gradient_norm", options.gradient_norm);
  add("exchange_dtype", options.exchange_dtype ? c10::toString(*options.exchange_dtype) : "unset");
  add("one_copy_per_machine", options.one_copy_per_machine);
  add("check_replicas_every", options.check_replicas_every);
  add("comm_hook", options.comm_hook ? options.comm_hook->describe() : "none");
  return text.str();
}

void internal::check(const DistributedDataParallelOptions& options) {
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
  if (options.check_replicas_every < 0) {
    throw UsageError(
        concat("DistributedDataParallel: check_replicas_every=", options.check_replicas_every,
               " is not a number of steps; give 0 to compare replicas never"));
  }
  check_delayed(options);
  if (options.one_copy_per_machine) check_one_copy(options);
  if (!options.comm_hook) return;
  check_hook(options);
  options.comm_hook->claim();
}

}  // namespace lockstep
