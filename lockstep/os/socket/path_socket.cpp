#include "lockstep/os/socket/path_socket.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

// Names the folder by its descriptor, however long its path is.
class PathAddress {
 public:
  explicit PathAddress(const std::filesystem::path& path)
      : folder_(::open(path.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    if (!folder_.valid()) throw SystemError(concat("open ", path.parent_path().string()), errno);
    const std::string name = concat("/proc/self/fd/", folder_.get(), "/", path.filename().string());
    address_.sun_family = AF_UNIX;
    if (name.size() >= sizeof(address_.sun_path)) {
      throw SystemError(concat("the socket ", path.string()), ENAMETOOLONG);
    }
    std::memcpy(address_.sun_path, name.c_str(), name.size() + 1);
  }

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  static constexpr socklen_t kBytes = sizeof(sockaddr_un);

 private:
  UniqueFd folder_;
  sockaddr_un address_{};
};

UniqueFd make_stream_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) throw SystemError("make a Unix socket", errno);
  return fd;
}

}  // namespace

UniqueFd listen_at_path(const std::filesystem::path& path) {
  constexpr int kBacklog = 64;
  UniqueFd fd = make_stream_socket();
  const PathAddress address(path);
  if (::bind(fd.get(), address.get(), PathAddress::kBytes) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    throw SystemError(concat("listen at ", path.string()), errno);
  }
  return fd;
}

UniqueFd connect_to_path(const std::filesystem::path& path) {
  UniqueFd fd = make_stream_socket();
  const PathAddress address(path);
  if (::connect(fd.get(), address.get(), PathAddress::kBytes) != 0) {
    throw SystemError(concat("connect to ", path.string()), errno);
  }
  return fd;
}

}  // namespace lockstep::inline internal
