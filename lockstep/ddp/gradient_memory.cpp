#include "lockstep/ddp/gradient_memory.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "lockstep/base/error.h"

namespace lockstep {

struct GradientMemory::Source {
  const ProcessGroup group;
  const std::vector<std::size_t> gradient_bytes;  // ascending
  std::atomic<bool> open = false;

  bool serves(std::size_t bytes) const {
    return open && std::binary_search(gradient_bytes.begin(), gradient_bytes.end(), bytes);
  }
};

namespace {

using Source = GradientMemory::Source;

// The sources that this thread has opened; those that are closed or gone are dropped on the way.
thread_local std::vector<std::weak_ptr<Source>> opened_here;

c10::DataPtr shared_memory(const Source& source, std::size_t bytes) {
  const at::Tensor tensor =
      source.group.allocate_tensor(static_cast<std::int64_t>(bytes), at::kByte);
  return tensor.storage().set_data_ptr(c10::DataPtr());
}

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
  // Raw memory is asked for where no backward pass runs, and is the ordinary allocator's.
  c10::DeleterFnPtr raw_deleter() const override { return ordinary_->raw_deleter(); }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    ordinary_->copy_data(target, source, bytes);
  }

 private:
  static c10::DataPtr from_source(std::size_t bytes) {
    for (const std::weak_ptr<Source>& weak : opened_here) {
      const std::shared_ptr<Source> source = weak.lock();
      if (!source || !source->serves(bytes)) continue;
      try {
        return shared_memory(*source, bytes);
      } catch (const Error&) {
        // Short of memory that can be shared: the gradient is copied later.
        source->open = false;
      }
    }
    return {};
  }

  c10::Allocator* const ordinary_;
};

void install_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    static auto* const allocator = new GradientAllocator(c10::GetCPUAllocator());  // for ever
    c10::SetCPUAllocator(allocator);
  });
}

}  // namespace

GradientMemory::GradientMemory(ProcessGroup group, std::vector<std::size_t> gradient_bytes) {
  if (gradient_bytes.empty()) return;
  std::sort(gradient_bytes.begin(), gradient_bytes.end());
  source_ = std::shared_ptr<Source>(new Source{std::move(group), std::move(gradient_bytes)});
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

}  // namespace lockstep
