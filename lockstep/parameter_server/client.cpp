#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/parameter_server/internal/calls.h"
#include "lockstep/parameter_server/internal/shard.h"
#include "lockstep/parameter_server/internal/shard_plan.h"
#include "lockstep/parameter_server/training.h"
#include "lockstep/rpc/rpc.h"

namespace lockstep::parameter_server {
namespace {

// The part of a batch of rows that is one server's.
struct Share {
  at::Tensor places;  ///< in the batch
  at::Tensor rows;    ///< on the server
};

Share share_of(const at::Tensor& ids, std::size_t server, std::size_t servers) {
  const auto count = static_cast<std::int64_t>(servers);
  at::Tensor places =
      ids.remainder(count).eq(static_cast<std::int64_t>(server)).nonzero().flatten();
  at::Tensor rows = ids.index_select(0, places).floor_divide(count);
  return {std::move(places), std::move(rows)};
}

}  // namespace

ParameterClient::ParameterClient(const Parts& parts, std::vector<int> servers, int trainer,
                                 int trainers, std::optional<std::chrono::milliseconds> timeout)
    : parameters_(parts.parameters),
      tables_(parts.tables),
      servers_(std::move(servers)),
      trainer_(trainer),
      trainers_(trainers),
      timeout_(timeout) {
  check_parts(parts);
  gradients_ = at::zeros({count_elements(parameters_)},
                         parameters_.empty() ? at::TensorOptions(at::kFloat)
                                             : parameters_[0].options().requires_grad(false));
}

std::size_t ParameterClient::find(const std::string& table) const {
  for (std::size_t index = 0; index < tables_.size(); ++index) {
    if (tables_[index].name == table) return index;
  }
  throw UsageError(concat("look_up on trainer ", trainer_, ": there is no table '", table, "'"));
}

at::Tensor ParameterClient::fetch(std::size_t table, const at::Tensor& ids) const {
  at::Tensor rows = at::empty({ids.numel(), tables_[table].columns}, at::kFloat);
  std::vector<std::pair<at::Tensor, rpc::Future<at::Tensor>>> parts;
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    Share share = share_of(ids, server, servers_.size());
    if (share.rows.numel() == 0) continue;
    parts.emplace_back(share.places, rpc::call_async<at::Tensor>(servers_[server], kRows, trainer_,
                                                                 table, share.rows));
  }
  for (const auto& [places, part] : parts) rows.index_copy_(0, places, part.wait());
  return rows;
}

at::Tensor ParameterClient::look_up(const std::string& table, const at::Tensor& ids) {
  const std::size_t index = find(table);
  if (ids.scalar_type() != at::kLong)
    throw UsageError(concat("look_up in '", table, "': ids of dtype ",
                            c10::toString(ids.scalar_type()), "; Long is what it takes"));
  const bool learns = c10::GradMode::is_enabled();
  at::Tensor rows;
  at::Tensor places;
  {
    const c10::NoGradGuard no_grad;
    auto [unique, inverse, counts] =
        at::_unique2(ids.flatten(), /*sorted=*/true, /*return_inverse=*/true);
    if (unique.numel() > 0 && (unique[0].item<std::int64_t>() < 0 ||
                               unique[-1].item<std::int64_t>() >= tables_[index].rows)) {
      throw UsageError(concat("look_up in '", table, "': ids ", unique[0].item<std::int64_t>(),
                              " to ", unique[-1].item<std::int64_t>(), "; it has ",
                              tables_[index].rows, " rows"));
    }
    rows = fetch(index, unique);
    places = inverse;
    if (learns) {
      rows.requires_grad_();
      looked_up_.push_back({index, unique, rows});
    }
  }
  std::vector<std::int64_t> shape = ids.sizes().vec();
  shape.push_back(tables_[index].columns);
  return rows.index_select(0, places).view(shape);
}

void ParameterClient::gather_gradients() {
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : parameters_) {
    at::Tensor part = gradients_.narrow(0, begin, parameter.numel());
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined()) {
      part.view(parameter.sizes()).copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
    } else {
      part.zero_();
    }
    begin += parameter.numel();
  }
}

void ParameterClient::push(std::int64_t step) {
  const c10::NoGradGuard no_grad;
  gather_gradients();
  const auto servers = static_cast<int>(servers_.size());
  std::vector<rpc::Future<void>> pushes;
  for (int server = 0; server < servers; ++server) {
    const Slice slice = slice_of(gradients_.numel(), server, servers);
    std::vector<at::Tensor> rows;
    std::vector<at::Tensor> gradients;
    for (std::size_t table = 0; table < tables_.size(); ++table) {
      std::vector<at::Tensor> of_rows{at::empty({0}, at::kLong)};
      std::vector<at::Tensor> of_gradients{at::empty({0, tables_[table].columns}, at::kFloat)};
      for (const LookedUp& looked_up : looked_up_) {
        if (looked_up.table != table || !looked_up.rows.grad().defined()) continue;
        const Share share =
            share_of(looked_up.ids, static_cast<std::size_t>(server), servers_.size());
        of_rows.push_back(share.rows);
        of_gradients.push_back(looked_up.rows.grad().index_select(0, share.places));
      }
      rows.push_back(at::cat(of_rows));
      gradients.push_back(at::cat(of_gradients));
    }
    pushes.push_back(
        rpc::call_async<void>(servers_[static_cast<std::size_t>(server)], kPush, trainer_, step,
                              gradients_.narrow(0, slice.begin, slice.size()), rows, gradients));
  }
  for (const auto& push : pushes) push.wait();
  looked_up_.clear();
}

void ParameterClient::pull(std::int64_t step) {
  const c10::NoGradGuard no_grad;
  std::vector<rpc::Future<at::Tensor>> pulls;
  for (const int server : servers_)
    pulls.push_back(rpc::call_async<at::Tensor>({server, timeout_}, kPull, trainer_, step));
  for (std::size_t server = 0; server < pulls.size(); ++server) {
    write_slice(
        parameters_,
        slice_of(gradients_.numel(), static_cast<int>(server), static_cast<int>(servers_.size())),
        pulls[server].wait());
  }
}

void ParameterClient::finish() {
  const auto ask = [this](int server) {
    return rpc::call_async<void>({server, timeout_}, kFinish, trainer_);
  };
  std::vector<rpc::Future<void>> ends;
  for (const int server : servers_) ends.push_back(ask(server));
  for (std::size_t server = 0; server < ends.size();) {
    try {
      ends[server].wait();
      ++server;
    } catch (const TimeoutError&) {  // Others still train.
      expect_alive(servers_[server]);
      ends[server] = ask(servers_[server]);
    }
  }
}

}  // namespace lockstep::parameter_server
