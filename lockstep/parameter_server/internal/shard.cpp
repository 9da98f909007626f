#include "lockstep/parameter_server/internal/shard.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/parameter_server/internal/shard_plan.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/snapshot.h"

namespace lockstep::parameter_server {

// Drawn in blocks of rows, each with a seed of its own: the same whoever holds which.
at::Tensor initial_rows(const Table& table, int server, int servers) {
  constexpr std::int64_t kRowsABlock = 4096;
  constexpr std::uint64_t kBlocks = std::uint64_t{1} << 32U;
  at::Tensor own = at::empty({rows_of(table.rows, server, servers), table.columns}, at::kFloat);
  std::int64_t filled = 0;
  for (std::int64_t begin = 0; begin < table.rows; begin += kRowsABlock) {
    const std::int64_t end = std::min(begin + kRowsABlock, table.rows);
    const auto block = static_cast<std::uint64_t>(begin / kRowsABlock);
    const at::Tensor rows = at::randn(
        {end - begin, table.columns},
        at::make_generator<at::CPUGeneratorImpl>(table.seed * kBlocks + block), at::kFloat);
    const std::int64_t first = ((server - begin) % servers + servers) % servers;
    const at::Tensor part = rows.slice(0, first, end - begin, servers);
    own.narrow(0, filled, part.size(0)).copy_(part);
    filled += part.size(0);
  }
  return own.mul_(table.standard_deviation);
}

}  // namespace lockstep::parameter_server

namespace lockstep::parameter_server::inline internal {

Shard::Shard(const Parts& parts, int server, int servers) : server_(server), servers_(servers) {
  check_parts(parts);
  values_ =
      read_slice(parts.parameters, slice_of(count_elements(parts.parameters), server, servers));
  values_.requires_grad_();
  for (const Table& table : parts.tables) {
    names_.push_back(table.name);
    tables_.push_back(initial_rows(table, server, servers).requires_grad_());
  }
  if (parts.optimizer) optimizer_ = parts.optimizer({values_});
  if (!tables_.empty()) table_optimizer_ = parts.table_optimizer(tables_);
}

void Shard::check_rows(std::size_t table, const at::Tensor& rows) const {
  if (table >= tables_.size())
    throw UsageError(concat("table ", table, " does not exist; there are ", tables_.size()));
  if (rows.dim() != 1 || rows.scalar_type() != at::kLong || !rows.is_cpu() ||
      rows.layout() != at::kStrided) {
    throw UsageError(
        concat("rows of table '", names_[table], "' must be a 1-D tensor of Long on the CPU"));
  }
  if (rows.numel() == 0) return;
  const auto [lowest, highest] = rows.aminmax();
  if (lowest.item<std::int64_t>() < 0 || highest.item<std::int64_t>() >= tables_[table].size(0)) {
    throw UsageError(concat(
        "rows ", lowest.item<std::int64_t>(), " to ", highest.item<std::int64_t>(), " of table '",
        names_[table], "' are out of range; server ", server_, " has ", tables_[table].size(0)));
  }
}

at::Tensor Shard::rows(std::size_t table, const at::Tensor& rows) const {
  const c10::NoGradGuard no_grad;
  check_rows(table, rows);
  return tables_[table].index_select(0, rows);
}

void Shard::check(const Gradients& gradients) const {
  const at::Tensor& dense = gradients.dense;
  if (dense.sizes() != values_.sizes() || dense.scalar_type() != values_.scalar_type() ||
      !dense.is_cpu() || dense.layout() != at::kStrided) {
    throw UsageError(concat("gradients have ", dense.numel(), " elements of ",
                            c10::toString(dense.scalar_type()), ", server ", server_, " has ",
                            values_.numel(), " of ", c10::toString(values_.scalar_type())));
  }
  if (gradients.tables.size() != tables_.size()) {
    throw UsageError(concat("gradients have ", gradients.tables.size(), " tables, server ", server_,
                            " has ", tables_.size()));
  }
  for (std::size_t table = 0; table < tables_.size(); ++table) {
    const RowGradients& part = gradients.tables[table];
    check_rows(table, part.rows);
    if (part.gradients.scalar_type() != at::kFloat || !part.gradients.is_cpu() ||
        part.gradients.layout() != at::kStrided ||
        part.gradients.sizes() != at::IntArrayRef({part.rows.numel(), tables_[table].size(1)})) {
      throw UsageError(concat("gradients of table '", names_[table],
                              "' must be a tensor of Float on the CPU with shape [",
                              part.rows.numel(), ", ", tables_[table].size(1), "]"));
    }
  }
}

void Shard::update(std::vector<Gradients> gradients) {
  const c10::NoGradGuard no_grad;
  const auto count = static_cast<double>(gradients.size());
  at::Tensor& sum = gradients.front().dense;
  for (std::size_t index = 1; index < gradients.size(); ++index) sum.add_(gradients[index].dense);
  if (gradients.size() > 1) sum.div_(count);
  values_.mutable_grad() = sum;
  if (optimizer_) optimizer_->step();
  values_.mutable_grad() = at::Tensor();
  for (std::size_t table = 0; table < tables_.size(); ++table) {
    std::vector<at::Tensor> rows;
    std::vector<at::Tensor> values;
    for (const Gradients& one : gradients) {
      rows.push_back(one.tables[table].rows);
      values.push_back(one.tables[table].gradients);
    }
    at::Tensor gradient = at::sparse_coo_tensor(at::cat(rows).unsqueeze(0), at::cat(values),
                                                tables_[table].sizes())
                              .coalesce();  // Sums in their order.
    if (gradient._nnz() == 0) continue;
    if (gradients.size() > 1) gradient._values().div_(count);
    tables_[table].mutable_grad() = gradient;
  }
  if (table_optimizer_) table_optimizer_->step();
  for (at::Tensor& table : tables_) table.mutable_grad() = at::Tensor();
  ++updates_;
}

void Shard::save(const std::filesystem::path& path, std::int64_t clock) const {
  Snapshot snapshot{.step = updates_};
  snapshot.model.emplace_back("parameters", values_.detach());
  for (std::size_t table = 0; table < tables_.size(); ++table) {
    snapshot.model.emplace_back(concat("tables.", names_[table]), tables_[table].detach());
  }
  snapshot.optimizer = optimizer_ ? optimizer_state_dict(*optimizer_) : make_dict();
  c10::impl::GenericDict values = make_dict();
  values.insert("server", server_);
  values.insert("servers", servers_);
  values.insert("clock", clock);
  values.insert("table_optimizer",
                table_optimizer_ ? optimizer_state_dict(*table_optimizer_) : make_dict());
  snapshot.values = values;
  save_snapshot(path, snapshot);
}

std::int64_t Shard::load(const std::filesystem::path& path) {
  const c10::NoGradGuard no_grad;
  const std::string source = concat("the parameter server's snapshot ", path.string());
  const Snapshot snapshot = load_snapshot(path);
  std::vector<at::Tensor> targets{values_};
  targets.insert(targets.end(), tables_.begin(), tables_.end());
  const bool fits =
      snapshot.model.size() == targets.size() &&
      std::ranges::equal(snapshot.model, targets, [](const auto& named, const at::Tensor& target) {
        return named.second.sizes() == target.sizes() &&
               named.second.scalar_type() == target.scalar_type();
      });
  if (!fits || integer_entry(snapshot.values, "server", source) != server_ ||
      integer_entry(snapshot.values, "servers", source) != servers_) {
    throw UsageError(
        concat(source, ": it was saved with another model or number of servers; use the same"));
  }
  const c10::IValue of_tables = entry(snapshot.values, "table_optimizer", source);
  if (table_optimizer_) check_optimizer_state_dict(*table_optimizer_, of_tables, source);
  if (optimizer_) load_optimizer_state_dict(*optimizer_, snapshot.optimizer, source);
  if (table_optimizer_) load_optimizer_state_dict(*table_optimizer_, of_tables, source);
  for (std::size_t index = 0; index < targets.size(); ++index) {
    targets[index].detach().copy_(snapshot.model[index].second);
  }
  updates_ = snapshot.step;
  return integer_entry(snapshot.values, "clock", source);
}

void check_parts(const Parts& parts) {
  const auto fail = [](const auto&... words) {
    throw UsageError(concat("parameter servers: ", words...));
  };
  if (parts.parameters.empty() && parts.tables.empty()) fail("no parameters and no tables given");
  if (!parts.parameters.empty() && !parts.optimizer) fail("no optimizer for the parameters");
  if (!parts.tables.empty() && !parts.table_optimizer) fail("no table_optimizer for the tables");
  for (std::size_t index = 0; index < parts.parameters.size(); ++index) {
    const at::Tensor& parameter = parts.parameters[index];
    if (!parameter.defined() || !parameter.is_cpu() || !parameter.is_floating_point()) {
      fail("parameter ", index, " must be a floating-point tensor on the CPU");
    }
    if (!parameter.is_contiguous()) {
      fail("parameter ", index, " is not contiguous; call contiguous()");
    }
    if (parameter.scalar_type() != parts.parameters[0].scalar_type()) {
      fail("parameter ", index, " is of dtype ", c10::toString(parameter.scalar_type()),
           ", parameter 0 of ", c10::toString(parts.parameters[0].scalar_type()));
    }
  }
  std::set<std::string> names;
  for (const Table& table : parts.tables) {
    if (table.rows < 1 || table.columns < 1) {
      fail("table '", table.name, "' has ", table.rows, " rows and ", table.columns,
           " columns; give at least 1 of each");
    }
    if (!names.insert(table.name).second) fail("two tables are named '", table.name, "'");
  }
}

}  // namespace lockstep::parameter_server::inline internal
