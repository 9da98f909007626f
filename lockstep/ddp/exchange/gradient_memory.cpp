#include "lockstep/ddp/exchange/gradient_memory.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/mutex.h"

namespace lockstep::inline internal {

struct GradientMemory::Source {
  const Allocate allocate;
  const std::vector<std::size_t> gradient_bytes;  // ascending
  std::atomic<bool> open = false;

  bool serves(std::size_t bytes) const {
    return open && std::binary_search(gradient_bytes.begin(), gradient_bytes.end(), bytes);
  }
};

namespace {

using Source = GradientMemory::Source;

// The sources that this thread has opened, of which the last one serves first; those that are
// closed or gone are dropped on the way.
thread_local std::vector<std::weak_ptr<Source>> opened_here;

// Shared memory that was handed out. Who frees memory may know nothing but its address: see "raw
// memory" in c10/core/Allocator.h.
class HandedOut {
 public:
  static HandedOut& instance() {
    static auto* const handed_out = new HandedOut();  // never destroyed
    return *handed_out;
  }

  void add(c10::DataPtr memory) {
    const MutexLock lock(mutex_);
    void* const address = memory.get();
    by_address_.emplace(address, std::move(memory));
  }

  // Nothing where the address is none of ours.
  c10::DataPtr take(void* address) {
    const MutexLock lock(mutex_);
    const auto found = by_address_.find(address);
    if (found == by_address_.end()) return {};
    c10::DataPtr memory = std::move(found->second);
    by_address_.erase(found);
    return memory;
  }

  // Around a fork.
  void lock() LOCKSTEP_THREAD_SAFETY(acquire_capability(mutex_)) { mutex_.lock(); }
  void unlock() LOCKSTEP_THREAD_SAFETY(release_capability(mutex_)) { mutex_.unlock(); }

 private:
  Mutex mutex_;
  std::unordered_map<void*, c10::DataPtr> by_address_ LOCKSTEP_GUARDED_BY(mutex_);
};

class GradientAllocator final : public c10::Allocator {
 public:
  explicit GradientAllocator(c10::Allocator* ordinary) : ordinary_(ordinary) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (!opened_here.empty()) [[unlikely]] {
      if (c10::DataPtr memory = from_source(bytes)) return memory;
    }
    return ordinary_->allocate(bytes);
  }

  bool is_simple_data_ptr(const c10::DataPtr& memory) const override {
    return ordinary_->is_simple_data_ptr(memory);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return ordinary_->raw_deleter() != nullptr ? &free : nullptr;
  }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    ordinary_->copy_data(target, source, bytes);
  }

 private:
  static c10::DataPtr from_source(std::size_t bytes) {
    for (auto weak = opened_here.rbegin(); weak != opened_here.rend(); ++weak) {
      const std::shared_ptr<Source> source = weak->lock();
      if (!source || !source->serves(bytes)) continue;
      try {
        const at::Tensor tensor = source->allocate(static_cast<std::int64_t>(bytes));
        c10::DataPtr memory = tensor.storage().set_data_ptr(c10::DataPtr());
        void* const address = memory.get();
        HandedOut::instance().add(std::move(memory));
        return {address, address, &free, c10::kCPU};
      } catch (const Error&) {
        // Short of memory that can be shared: the gradient is copied later.
        source->open = false;
      }
    }
    return {};
  }

  static void free(void* address);

  c10::Allocator* const ordinary_;
};

GradientAllocator& the_allocator() {
  static auto* const allocator = new GradientAllocator(c10::GetCPUAllocator());  // never destroyed
  return *allocator;
}

void GradientAllocator::free(void* address) {
  const c10::DataPtr memory = HandedOut::instance().take(address);
  if (!memory) the_allocator().ordinary_->raw_deleter()(address);
}

void install_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::SetCPUAllocator(&the_allocator());
    // The memory that ranks share is not mapped in a forked process, such as a DataLoader's worker,
    // which frees memory all the same.
    ::pthread_atfork([] { HandedOut::instance().lock(); }, [] { HandedOut::instance().unlock(); },
                     [] {
                       HandedOut::instance().unlock();
                       opened_here.clear();
                     });
  });
}

}  // namespace

GradientMemory::GradientMemory(Allocate allocate, std::vector<std::size_t> gradient_bytes) {
  if (gradient_bytes.empty()) return;
  std::sort(gradient_bytes.begin(), gradient_bytes.end());
  source_ = std::shared_ptr<Source>(new Source{std::move(allocate), std::move(gradient_bytes)});
  install_once();
}

GradientMemory::~GradientMemory() {
  close();
}

void GradientMemory::open() {
  if (!source_) return;
  source_->open = true;
  std::erase_if(opened_here, [&](const std::weak_ptr<Source>& weak) {
    const auto source = weak.lock();
    return !source || !source->open || source == source_;
  });
  opened_here.push_back(source_);
}

void GradientMemory::close() {
  if (source_) source_->open = false;
}

}  // namespace lockstep::inline internal
