// The fork server itself, which runs before main().
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/internal/env.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/process/end_of_process.h"
#include "lockstep/os/process/fork_request.h"
#include "lockstep/os/process/helper_process.h"
#include "lockstep/os/process/loaded_libraries.h"
#include "lockstep/os/socket/passed_fd.h"

// What ForkServer::is_in() looks for: kForkServerNote, of type 1, without contents.
asm(R"(
  .pushsection .note.lockstep, "a", %note
  .balign 4
  .long 9, 0, 1
  .asciz "Lockstep"
  .balign 4
  .popsection
)");

/// The linker is asked for it, so that every program has this file.
extern "C" const char lockstep_fork_server = 1;

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kMostBytes = std::size_t{256} * 1024;
constexpr const char* kName = "fork-server";
constexpr std::string_view kTitle = "lockstep: fork server";

// A library that has started a thread would find it missing in forked workers.
bool has_one_thread() {
  std::error_code error;
  std::filesystem::directory_iterator entries("/proc/self/task", error);
  return !error && std::distance(begin(entries), end(entries)) == 1;
}

// OpenMP places threads by the first of these when it is loaded, on the processors of that process.
// By the last, others have their own code in the process.
bool has_special_environment() {
  constexpr std::array kNames{"OMP_PLACES",   "OMP_PROC_BIND", "GOMP_CPU_AFFINITY",
                              "KMP_AFFINITY", "LD_PRELOAD",    "LD_AUDIT"};
  return std::ranges::any_of(kNames, [](const char* name) {
    return env::text({name, "text", ""}).has_value();
  });
}

// A number that somebody else has set may be that of another file.
bool is_of_launcher(std::int64_t fd, pid_t launcher) {
  if (fd <= STDERR_FILENO || fd > std::numeric_limits<int>::max()) return false;
  const int socket = static_cast<int>(fd);
  int type = 0;
  socklen_t bytes = sizeof type;
  ucred peer{};
  socklen_t peer_bytes = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_SEQPACKET &&
         ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) == 0 &&
         peer.pid == launcher;
}

bool send_number(int socket, std::int32_t number) {
  return ::send(socket, &number, sizeof number, MSG_NOSIGNAL) == sizeof number;
}

// A process whose parent ends becomes the launcher's child, as that adopts orphans. False where the
// launcher has ended, or adopts none.
bool become_child_of(pid_t launcher, pid_t parent) {
  while (::getppid() == parent) ::sched_yield();
  return ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && ::getppid() == launcher;
}

// Forks a process whose parent is the launcher. Returns 0 in it, after `begin`, which the
// launcher's children are not seen without; to the caller an error, if any.
int fork_for(pid_t launcher, int& error, const std::function<void()>& begin) {
  error = 0;
  const pid_t middle = ::fork();
  if (middle < 0) {
    error = errno;
    return -1;
  }
  if (middle == 0) {
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child != 0) ::_exit(child < 0 ? errno : 0);
    begin();
    if (!become_child_of(launcher, parent)) ::_exit(1);
    return 0;
  }
  int status = 0;
  while (::waitpid(middle, &status, 0) < 0 && errno == EINTR) {
  }
  error = WIFEXITED(status) ? WEXITSTATUS(status) : ECHILD;
  return middle;
}

// Gives the files their numbers and closes what else is open, but the first of them, the reply,
// which gets a number beyond these. Its descriptor, or -1 with errno.
int take_files(std::vector<UniqueFd> files, const std::vector<int>& numbers) {
  const int beyond = *std::ranges::max_element(numbers) + 1;
  std::vector<int> moved;
  for (const UniqueFd& file : files) {
    moved.push_back(::fcntl(file.get(), F_DUPFD_CLOEXEC, beyond));
    if (moved.back() < 0) return -1;
  }
  for (UniqueFd& file : files) file.reset();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (::dup2(moved[i + 1], numbers[i]) < 0) return -1;
  }
  for (int fd = STDERR_FILENO + 1; fd < beyond; ++fd) {
    if (std::ranges::find(numbers, fd) == numbers.end()) ::close(fd);
  }
  close_files_from(beyond, moved[0]);
  return moved[0];
}

// Where the kernel has put these texts of the program, which others read in /proc.
std::span<char> place_of(char** texts) {
  if (texts == nullptr || *texts == nullptr) return {};
  char* const begin = *texts;
  char* end = begin;
  for (; *texts == end; ++texts) end += std::strlen(end) + 1;
  return {begin, end};
}

/// What ps, pgrep and /proc show of this process.
struct Shown {
  /// Of a worker.
  struct Texts {
    std::array<char, 16> name{};
    std::string arguments;
  };

  std::span<char> arguments;
  std::span<char> environment;
};

void show(std::string_view text, std::span<char> place) {
  std::ranges::fill(place, '\0');
  std::ranges::copy(text.substr(0, place.size()), place.begin());
}

// Each line in the place of the first worker's, as libraries may point to those that are equal.
// What has no place there takes that of the socket's number, as far as it goes.
void show_environment(std::vector<std::string> lines, std::span<char> shown) {
  const auto name_of = [](std::string_view line) { return line.substr(0, line.find('=')); };
  std::span<char> spare;
  for (std::size_t at = 0; at < shown.size();) {
    const std::string_view line(shown.data() + at);
    const std::span<char> place = shown.subspan(at, line.size());
    at += line.size() + 1;
    const auto own = std::ranges::find(lines, name_of(line), name_of);
    if (own == lines.end() || own->size() > place.size()) {
      if (name_of(line) == kForkServerFd.name) spare = place;
      show("", place);
    } else {
      if (*own != line) show(*own, place);
      lines.erase(own);
    }
  }
  for (const std::string& line : lines) {
    if (line.size() > spare.size()) continue;
    show(line, spare.first(line.size()));
    spare = spare.subspan(std::min(line.size() + 1, spare.size()));
  }
}

// As a program that spawn_process() executes. Returns errno.
int become_worker(const ForkRequest& request, pid_t launcher) {
  ::prctl(PR_SET_PTRACER, launcher);
  if (::setsid() < 0) return errno;
  if (!request.cpus.empty() && !CpuSet(request.cpus).apply()) return errno;
  // As long as the process lives.
  static auto* const lines = new std::vector<std::string>(request.environment);
  static auto* const pointers = new std::vector<char*>;
  for (std::string& line : *lines) pointers->push_back(line.data());
  pointers->push_back(nullptr);
  environ = pointers->data();
  return 0;
}

// Returns in each worker that it forks, and there only.
void serve(int socket, pid_t launcher, const Shown& shown, const Shown::Texts& own) {
  ::setsid();
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);
  // The worker's files, above all those whose end says that it has ended.
  close_files_from(STDERR_FILENO + 1, socket);
  if (!send_number(socket, ::getpid())) ::_exit(0);
  std::string bytes;
  for (;;) {
    bytes.resize(kMostBytes);
    iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    PassedFds passed;
    passed.receive_with(header);
    const ssize_t count = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) ::_exit(0);  // The launcher has ended, or needs no more.
    std::vector<UniqueFd> files = PassedFds::take(header);
    bytes.resize(static_cast<std::size_t>(count));
    const auto request = decoded_fork_request(bytes);
    if (!request || files.size() != request->files.size() + 1) continue;
    int error = 0;
    const auto begin = [&] {
      ::prctl(PR_SET_NAME, own.name.data());
      show(own.arguments, shown.arguments);
      show_environment(request->environment, shown.environment);
    };
    if (fork_for(launcher, error, begin) != 0) {
      if (error != 0) send_number(files.front().get(), -error);
      continue;
    }
    error = become_worker(*request, launcher);
    const int reply = take_files(std::move(files), request->files);
    if (reply < 0) ::_exit(1);
    if (!send_number(reply, error != 0 ? -error : ::getpid()) || error != 0) ::_exit(1);
    std::int32_t word = 0;
    if (::recv(reply, &word, sizeof word, 0) != sizeof word) ::_exit(1);
    ::close(reply);
    return;
  }
}

[[gnu::constructor(101)]] void leave_fork_server(int, char** arguments) try {
  const auto number = env::integer(kForkServerFd);
  const pid_t launcher = ::getppid();
  if (!number || !is_of_launcher(*number, launcher)) return;
  const int socket = static_cast<int>(*number);
  const Shown shown{.arguments = place_of(arguments), .environment = place_of(environ)};
  ::unsetenv(kForkServerFd.name);
  // What has run before this is libraries' own initialization, and in the workers it has run in the
  // first one's environment. Another library may have read its rank.
  if (has_one_thread() && !has_special_environment() && has_only_system_libraries()) {
    end_without_destructors_of_libraries();
    int error = 0;
    Shown::Texts own{.arguments = {shown.arguments.begin(), shown.arguments.end()}};
    ::prctl(PR_GET_NAME, own.name.data());
    const auto begin = [&] {
      ::prctl(PR_SET_NAME, kName);
      if (!own.arguments.empty()) show(kTitle, shown.arguments.first(own.arguments.size() - 1));
    };
    if (fork_for(launcher, error, begin) == 0) return serve(socket, launcher, shown, own);
  }
  ::close(socket);
} catch (const std::exception&) {
  // Out of memory, or no number: there is no server.
}

}  // namespace
}  // namespace lockstep::inline internal
