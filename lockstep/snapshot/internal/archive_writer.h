#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include <caffe2/serialize/inline_container.h>

namespace lockstep::inline internal {

inline constexpr const char* kPickleRecord = "data.pkl";
inline constexpr const char* kByteOrderRecord = "byteorder";
inline constexpr const char* kStoragePrefix = "data/";

/// LibTorch's archive writer on a stream that may fail. LibTorch's writer does not handle failures:
/// it leaks, loses the error, and throws from its destructor. So this class hides them from it:
/// after a failure it drops all bytes, and throws the error at the end.
class ArchiveWriter {
 public:
  using Output = std::function<void(const void* data, std::size_t bytes)>;

  explicit ArchiveWriter(Output output)
      : output_(std::move(output)), writer_([this](const void* data, std::size_t bytes) {
          write(data, bytes);
          return bytes;
        }) {}

  ~ArchiveWriter() {
    if (writer_.finalized()) return;
    failed_ = true;
    try {
      writer_.writeEndOfFile();
    } catch (const std::exception&) {
      // The archive is given up; only its destructor must not throw.
    }
  }
  ArchiveWriter(const ArchiveWriter&) = delete;
  ArchiveWriter& operator=(const ArchiveWriter&) = delete;

  void add(const std::string& name, const void* data, std::size_t bytes) {
    writer_.writeRecord(name, data, bytes);
  }

  void finish() {
    writer_.writeEndOfFile();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void write(const void* data, std::size_t bytes) noexcept {
    if (failed_) return;
    try {
      output_(data, bytes);
    } catch (...) {
      failed_ = true;
      error_ = std::current_exception();
    }
  }

  Output output_;
  bool failed_ = false;
  std::exception_ptr error_;
  caffe2::serialize::PyTorchStreamWriter writer_;
};

}  // namespace lockstep::inline internal
