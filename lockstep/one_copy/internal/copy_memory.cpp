#include "lockstep/one_copy/internal/copy_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kMostFileNameBytes = 200;

std::uint64_t number_of(const UniqueFd& file) {
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) throw SystemError("looking at a memory file", errno);
  return facts.st_ino;
}

}  // namespace

CopyMemory::Files CopyMemory::make_files(const std::string& name, std::uint64_t data_bytes) {
  return {.data = make_memory_file(concat("lockstep ", name).substr(0, kMostFileNameBytes).c_str(),
                                   data_bytes + kHeadBytes),
          .gradients = GradientSlots::make_file(name),
          .past = PastValues::make_file(name, data_bytes)};
}

std::shared_ptr<CopyMemory> CopyMemory::map(Files files, StateTypes types, std::uint64_t version) {
  const std::uint64_t bytes = memory_file_bytes(files.data.get()).value_or(0);
  if (bytes < kHeadBytes) throw SystemError("mapping a copy of a model", EINVAL);
  std::shared_ptr<CopyMemory> memory(
      new CopyMemory(std::move(files), std::move(types), version, bytes - kHeadBytes));
  add(memory->own().data(), memory->own().bytes(), memory);
  return memory;
}

CopyMemory::CopyMemory(Files files, StateTypes types, std::uint64_t version,
                       std::uint64_t data_bytes)
    : file_(std::move(files.data)),
      gradients_(std::move(files.gradients)),
      id_(number_of(file_)),
      shared_(file_.get(), data_bytes + kHeadBytes),
      own_(file_.get(), data_bytes),
      types_(std::move(types)),
      states_(types_.size()),
      version_(version),
      past_(std::move(files.past), data_bytes,
            [this](std::size_t slot) { return gradients_.is_held(slot); }) {
  static_assert(PastValues::kMostHolders == GradientSlots::kSlots);
  shared_.populate(data_bytes, sizeof(std::uint64_t));
}

CopyMemory::~CopyMemory() {
  remove(own_.data());
}

std::shared_ptr<CopyMemory> CopyMemory::find(const void* address) {
  return std::dynamic_pointer_cast<CopyMemory>(FreezableMemory::find(address));
}

// The process that had the slot before may have died while it saved.
void CopyMemory::assign_slots(const ProcessGroup& group) {
  gradients_.assign(group);
  const MutexLock lock(mutex_);
  if (holds_ == 0) past_.let_go(static_cast<std::size_t>(gradients_.own_slot()));
}

std::atomic<std::uint64_t>& CopyMemory::file_version() const {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(shared_.data() + data_bytes());
}

void CopyMemory::begin_version() {
  file_version().store(++version_);
  // Nothing that is written is seen before it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  past_.begin_writes();
}

bool CopyMemory::is_current() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return file_version().load() == version_;
}

bool CopyMemory::is_kept() const {
  return is_released_ && !is_torn_ && sees_the_file() && is_current();
}

// Pages that the program has written, and restored, are given up.
bool CopyMemory::sees_the_file() const {
  for (const PrivateMapping::Range& pages : own_.own_pages()) {
    if (std::memcmp(own_.data() + pages.begin, shared_.data() + pages.begin,
                    pages.end - pages.begin) != 0) {
      return false;
    }
    own_.drop(pages);
  }
  return true;
}

/// The memory between two steps: the file, with what this process has changed since the last one.
class CopyMemory::Frozen : public FrozenMemory {
 public:
  explicit Frozen(std::shared_ptr<CopyMemory> memory)
      : memory_(std::move(memory)), version_(memory_->version_) {}
  ~Frozen() override {
    if (is_held_) memory_->let_go_of_version();
  }

  bool hold() { return is_held_ = memory_->hold_version(); }
  void copy_own_pages() {
    for (const PrivateMapping::Range& pages : memory_->own_.own_pages()) {
      const std::byte* const data = memory_->own_.data();
      own_.push_back({pages.begin, {data + pages.begin, data + pages.end}});
    }
  }

  // Through the file: no mapping of this process is read while others write.
  void read(const void* first, std::uint64_t bytes, std::byte* target) const override {
    const auto offset =
        static_cast<std::uint64_t>(static_cast<const std::byte*>(first) - memory_->own_.data());
    LOCKSTEP_ASSERT(offset + bytes <= memory_->data_bytes());
    for (std::uint64_t done = 0; done < bytes;) {
      const ssize_t count = ::pread(memory_->file_.get(), target + done, bytes - done,
                                    static_cast<off_t>(offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) throw SystemError("reading a copy of a model", count < 0 ? errno : EIO);
      done += static_cast<std::uint64_t>(count);
    }
    memory_->past_.restore(version_, offset, bytes, target);
    for (const auto& [begin, values] : own_) {
      const std::uint64_t from = std::max(begin, offset);
      const std::uint64_t to = std::min(begin + values.size(), offset + bytes);
      if (from < to) std::memcpy(target + (from - offset), &values[from - begin], to - from);
    }
  }

 private:
  const std::shared_ptr<CopyMemory> memory_;
  const std::uint64_t version_;
  bool is_held_ = false;
  /// By offset: pages that are this process's.
  std::vector<std::pair<std::uint64_t, std::vector<std::byte>>> own_;
};

std::shared_ptr<const FrozenMemory> CopyMemory::freeze() {
  if (is_torn_ || gradients_.own_slot() < 0 || !is_current()) return nullptr;
  auto frozen = std::make_shared<Frozen>(shared_from_this());
  // Where ranks have gone on without this one, a step may not have seen the hold.
  if (!frozen->hold() || !is_current()) return nullptr;
  frozen->copy_own_pages();
  return frozen;
}

bool CopyMemory::hold_version() {
  const MutexLock lock(mutex_);
  if (holds_ > 0 && held_version_ != version_) return false;
  if (holds_ == 0) {
    const auto slot = static_cast<std::size_t>(gradients_.own_slot());
    if (!past_.hold(slot, version_)) return false;
    held_version_ = version_;
    held_slot_ = slot;
  }
  ++holds_;
  return true;
}

void CopyMemory::let_go_of_version() noexcept {
  const MutexLock lock(mutex_);
  if (--holds_ == 0) past_.let_go(held_slot_);
}

}  // namespace lockstep::inline internal
