#include "lockstep/one_copy/internal/copy_memory.h"

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include <sys/stat.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/mutex.h"

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kMostFileNameBytes = 200;

// By the first address.
struct Mappings {
  Mutex mutex;
  std::map<const std::byte*, std::weak_ptr<CopyMemory>> memories LOCKSTEP_GUARDED_BY(mutex);
};

Mappings& mappings() {
  static auto* const of_process = new Mappings();  // never destroyed
  return *of_process;
}

std::uint64_t number_of(const UniqueFd& file) {
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) throw SystemError("looking at a memory file", errno);
  return facts.st_ino;
}

}  // namespace

CopyMemory::Files CopyMemory::make_files(const std::string& name, std::uint64_t data_bytes) {
  return {.data = make_memory_file(concat("lockstep ", name).substr(0, kMostFileNameBytes).c_str(),
                                   data_bytes + kHeadBytes),
          .gradients = GradientSlots::make_file(name)};
}

std::shared_ptr<CopyMemory> CopyMemory::map(Files files, StateTypes types, std::uint64_t version) {
  const std::uint64_t bytes = memory_file_bytes(files.data.get()).value_or(0);
  if (bytes < kHeadBytes) throw SystemError("mapping a copy of a model", EINVAL);
  std::shared_ptr<CopyMemory> memory(
      new CopyMemory(std::move(files), std::move(types), version, bytes - kHeadBytes));
  const MutexLock lock(mappings().mutex);
  mappings().memories[memory->own().data()] = memory;
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
      version_(version) {
  shared_.populate(data_bytes, sizeof(std::uint64_t));
}

CopyMemory::~CopyMemory() {
  const MutexLock lock(mappings().mutex);
  const auto found = mappings().memories.find(own_.data());
  if (found != mappings().memories.end() && found->second.expired()) {
    mappings().memories.erase(found);
  }
}

std::shared_ptr<CopyMemory> CopyMemory::find(const void* address) {
  const auto* const byte = static_cast<const std::byte*>(address);
  std::shared_ptr<CopyMemory> memory;  // Its destructor takes the lock.
  const MutexLock lock(mappings().mutex);
  auto next = mappings().memories.upper_bound(byte);
  if (next == mappings().memories.begin()) return nullptr;
  memory = std::prev(next)->second.lock();
  if (!memory || byte >= memory->own().data() + memory->own().bytes()) return nullptr;
  return memory;
}

std::atomic<std::uint64_t>& CopyMemory::file_version() const {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(shared_.data() + data_bytes());
}

void CopyMemory::begin_version() {
  file_version().store(++version_);
  // Nothing that is written is seen before it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
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

}  // namespace lockstep::inline internal
