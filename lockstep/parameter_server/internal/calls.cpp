#include "lockstep/parameter_server/internal/calls.h"

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/rpc/rpc.h"

namespace lockstep::parameter_server::inline internal {
namespace {

std::string names_of(const std::vector<int>& ranks) {
  std::string names;
  for (const int rank : ranks)
    names += concat(names.empty() ? "'" : ", '", rpc::worker(rank).name, "'");
  return names;
}

}  // namespace

void expect_alive(int rank) {
  rpc::call<void>(rank, kLive);
}

ServedCalls::ServedCalls(const std::shared_ptr<ParameterServer>& desk)
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

struct ProcessExits::News {
  Mutex mutex;
  std::condition_variable came;
  bool has_come LOCKSTEP_GUARDED_BY(mutex) = false;
};

ProcessExits::ProcessExits() : news_(std::make_shared<News>()) {
  for (const rpc::WorkerInfo& worker : rpc::workers()) {
    stays_.emplace_back();
    if (worker != rpc::this_worker()) ask(worker.rank);
  }
}

void ProcessExits::ask(int rank) {
  auto& stay = stays_[static_cast<std::size_t>(rank)];
  stay = rpc::call_async<void>({rank, kAsLongAsItTakes}, kStay);
  stay->when_done([news = news_] {
    const MutexLock lock(news->mutex);
    news->has_come = true;
    news->came.notify_one();
  });
}

bool ProcessExits::has_left(int rank) {
  const auto& stay = stays_[static_cast<std::size_t>(rank)];
  if (!stay) return true;
  if (!stay->done()) return false;
  try {
    stay->wait();
    return true;
  } catch (const TimeoutError&) {  // It takes longer still.
    ask(rank);
    return false;
  }
}

void ProcessExits::check() {
  for (std::size_t rank = 0; rank < stays_.size(); ++rank) has_left(static_cast<int>(rank));
}

void ProcessExits::wait_for_news() {
  News& news = *news_;
  MutexLock lock(news.mutex);
  news.came.wait_for(lock.native(), std::chrono::milliseconds(50),
                     [&]() LOCKSTEP_REQUIRES(news.mutex) { return news.has_come; });
  news.has_come = false;
}

void ProcessExits::wait_for(const std::vector<int>& ranks, std::chrono::milliseconds log_interval,
                            const std::function<void()>& while_waiting) {
  Deadline patience = Deadline::after(log_interval);
  for (;;) {
    while_waiting();
    check();
    std::vector<int> left;
    std::ranges::copy_if(ranks, std::back_inserter(left),
                         [&](int rank) { return !has_left(rank); });
    if (left.empty()) return;
    if (patience.passed()) {
      log(LogLevel::kWarning,
          concat("parameter servers: '", rpc::this_worker().name, "' waits for ", names_of(left),
                 ", which completed all steps but still run"));
      for (const int rank : left) expect_alive(rank);
      patience = Deadline::after(log_interval);
    }
    wait_for_news();
  }
}

}  // namespace lockstep::parameter_server::inline internal
