#include "lockstep/parameter_server/internal/calls.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/rpc/rpc.h"

namespace lockstep::parameter_server::inline internal {

void expect_alive(int rank) {
  rpc::call<void>(rank, kLive);
}

ServedCalls::ServedCalls(const std::shared_ptr<ServerDesk>& desk)
    : leaving_(c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get())) {
  const auto serve = [this](const char* name, auto function) {
    rpc::register_function(name, std::move(function));
    names_.emplace_back(name);
  };
  serve(kLive, [] {});
  serve(kStay, [leaving = leaving_] { return leaving; });
  if (!desk) return;
  serve(kPush, [desk](int trainer, std::int64_t step, const at::Tensor& dense,
                      const std::vector<at::Tensor>& rows,
                      const std::vector<at::Tensor>& gradients) {
    Gradients all{.dense = dense, .tables = {}};
    if (rows.size() != gradients.size())
      throw UsageError(concat("rows of ", rows.size(), " tables, gradients of ", gradients.size()));
    for (std::size_t table = 0; table < rows.size(); ++table)
      all.tables.push_back({rows[table], gradients[table]});
    desk->push(trainer, step, std::move(all));
  });
  serve(kPull, [desk](int trainer, std::int64_t step) { return desk->pull(trainer, step); });
  serve(kRows, [desk](int trainer, std::size_t table, const at::Tensor& rows) {
    return desk->rows(trainer, table, rows);
  });
  serve(kFinish, [desk](int trainer) { return desk->finish(trainer); });
}

ServedCalls::~ServedCalls() {
  for (const std::string& name : names_) rpc::unregister_function(name);
}

void ServedCalls::leave() {
  if (!leaving_->completed()) leaving_->markCompleted();
}

}  // namespace lockstep::parameter_server::inline internal
