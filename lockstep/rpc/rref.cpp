#include "lockstep/rpc/rref.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/rpc/internal/rref_state.h"
#include "lockstep/rpc/internal/worker.h"

namespace lockstep::rpc {

RRefState::RRefState(std::weak_ptr<Worker> worker, const RRefKey& key,
                     std::shared_ptr<PendingCall> making)
    : worker_(std::move(worker)), key_(key), making_(std::move(making)) {}

RRefState::~RRefState() {
  const auto release = [worker = worker_, key = key_] {
    if (const auto here = worker.lock()) here->release(key);
  };
  if (making_ && !making_->done()) {
    making_->when_done(release);
  } else {
    release();
  }
}

std::shared_ptr<Worker> RRefState::worker() const {
  auto worker = worker_.lock();
  if (!worker) throw UsageError("rpc: the RRef was created before rpc::shutdown");
  return worker;
}

void RRefState::wait_until_ready() const {
  if (making_) making_->wait();
}

std::string RRefState::ownerName() const {
  return worker()->find(key_.owner).name;
}

bool RRefState::isOwner() const {
  return worker()->rank() == key_.owner;
}

const c10::TypePtr RRefState::type() const {
  return c10::AnyType::get();
}

const RRefState& RRef::state() const {
  if (!state_) throw UsageError("rpc: the RRef is empty");
  return static_cast<const RRefState&>(*state_);
}

int RRef::owner() const {
  return state().key().owner;
}

bool RRef::is_owner() const {
  return state().isOwner();
}

void RRef::wait_until_ready() const {
  state().wait_until_ready();
}

c10::IValue RRef::to_value() const {
  state();
  return state_;
}

RRef RRef::from_value(const c10::IValue& value) {
  if (!value.isRRef()) throw UsageError(concat("it is of type ", value.tagKind(), ", not RRef"));
  auto state = value.toRRef();
  if (dynamic_cast<const RRefState*>(state.get()) == nullptr) {
    throw UsageError("it is not an RRef of Lockstep");
  }
  return RRef(std::move(state));
}

}  // namespace lockstep::rpc
