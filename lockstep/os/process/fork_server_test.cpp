// The tests' own program leaves the server, and is what it forks: each process runs the part of
// FORK_SERVER_TEST before any other test.
#include "lockstep/os/process/fork_server.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/process/fork_request.h"

namespace lockstep {
namespace {

constexpr const char* kPart = "FORK_SERVER_TEST";
constexpr const char* kProgram = "/proc/self/exe";
constexpr std::chrono::milliseconds kTimeToLoad{10'000};

std::string open_files() {
  std::string numbers;
  for (int fd = 0; fd < 1024; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) numbers += concat(fd, " ");
  }
  return numbers;
}

// What a process says of itself before it runs anything else.
[[gnu::constructor(65535)]] void run_part() {
  const char* const part = std::getenv(kPart);
  if (part == nullptr) return;
  if (std::string(part) == "wait") {
    std::puts("runs");
    std::fflush(stdout);
    for (;;) ::pause();
  }
  char name[16] = {};
  ::prctl(PR_GET_NAME, name);
  int death_signal = 0;
  ::prctl(PR_GET_PDEATHSIG, &death_signal);
  const auto cpus = allowed_cpus();
  std::printf("pid %d parent %d session %d name %s dies %d rank %s cpus %zu from %d files %s\n",
              ::getpid(), ::getppid(), ::getsid(0), name, death_signal, std::getenv("RANK"),
              cpus.size(), cpus.front(), open_files().c_str());
  std::fflush(stdout);
  std::ifstream command("/proc/self/cmdline");
  const std::string words{std::istreambuf_iterator<char>(command), {}};
  if (words != std::string("worker\0007\0", 9)) ::_exit(98);
  std::ifstream shown("/proc/self/environ");
  const std::string lines{std::istreambuf_iterator<char>(shown), {}};
  if (lines.find(concat("RANK=", std::getenv("RANK"), '\0')) == lines.npos) ::_exit(99);
  ::_exit(std::atoi(std::getenv("RANK")));
}

bool is_of_one_worker(std::string_view line) {
  return line.starts_with("RANK=") || line.starts_with(kPart);
}

class ForkServerTest : public testing::Test {
 protected:
  ForkServerTest() { adopt_orphans(); }
  ~ForkServerTest() override {
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    while (reap_any_child()) {
    }
  }

  SpawnOptions worker(int rank, const std::string& part = "report") const {
    return {.path = kProgram,
            .arguments = {"worker", "7"},
            .environment = {concat("RANK=", rank), concat(kPart, "=", part), "ALIKE=1"},
            .stdout_fd = out_.write_end.get()};
  }

  static int wait_for(pid_t pid) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return status;
  }

  std::string line() const {
    std::string text;
    for (char next = 0; ::read(out_.read_end.get(), &next, 1) == 1 && next != '\n';) text += next;
    return text;
  }

  // Executes the first worker, which leaves the server.
  ForkServer& make_server() {
    SpawnOptions first = worker(0, part_of_first_);
    first.cpus = cpus_of_first_;
    server_.emplace(first, is_of_one_worker, kTimeToLoad);
    first_ = spawn_process(first);
    server_->started_first();
    return *server_;
  }

  std::string part_of_first_ = "report";
  std::vector<int> cpus_of_first_;
  Pipe out_ = make_pipe();
  std::optional<ForkServer> server_;
  pid_t first_ = 0;
};

TEST_F(ForkServerTest, IsInProgramsThatLinkTheLibrary) {
  EXPECT_TRUE(ForkServer::is_in(kProgram));
  EXPECT_FALSE(ForkServer::is_in("/bin/sh"));
  EXPECT_FALSE(ForkServer::is_in("/etc/passwd"));
  EXPECT_FALSE(ForkServer::is_in("/no/such/program"));
}

TEST_F(ForkServerTest, ForksWorkersAsTheyWouldBeExecuted) {
  ForkServer& server = make_server();
  const std::string executed = line();
  EXPECT_EQ(wait_for(first_), 0);
  const auto as_first = [&](pid_t pid, int rank) {
    std::string text = executed;
    const auto put = [&](const std::string& before, const std::string& after) {
      const auto at = text.find(before);
      ASSERT_NE(at, std::string::npos) << before << " in " << text;
      text.replace(at, before.size(), after);
    };
    put(concat("pid ", first_), concat("pid ", pid));
    put(concat("session ", first_), concat("session ", pid));
    put("rank 0", concat("rank ", rank));
    return text;
  };
  for (const int rank : {1, 12}) {
    const auto pid = server.start(worker(rank));
    ASSERT_TRUE(pid);
    EXPECT_EQ(line(), as_first(*pid, rank));
    EXPECT_EQ(WEXITSTATUS(wait_for(*pid)), rank) << "its exit is not the launcher's to see";
  }
}

TEST_F(ForkServerTest, GivesFilesTheirNumbersAndItsProcessors) {
  cpus_of_first_ = {allowed_cpus().front()};
  ForkServer& server = make_server();
  line();
  wait_for(first_);
  // Numbers that the server itself has in use, and one far beyond.
  const UniqueFd far(::fcntl(out_.write_end.get(), F_DUPFD_CLOEXEC, 400));
  const UniqueFd near(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd lowest(::fcntl(out_.write_end.get(), F_DUPFD_CLOEXEC, 3));
  SpawnOptions options = worker(3);
  options.inherited_fds = {lowest.get(), near.get(), far.get()};
  options.cpus = {allowed_cpus().back()};
  const auto pid = server.start(options);
  ASSERT_TRUE(pid);
  const std::string text = line();
  EXPECT_NE(text.find(concat("cpus 1 from ", options.cpus.front(), " ")), std::string::npos)
      << text;
  for (const int fd : {lowest.get(), near.get(), far.get()}) {
    EXPECT_NE(text.find(concat(" ", fd, " ")), std::string::npos) << text;
  }
  EXPECT_EQ(WEXITSTATUS(wait_for(*pid)), 3);
}

TEST_F(ForkServerTest, LeavesOthersToBeExecuted) {
  ForkServer& server = make_server();
  line();
  SpawnOptions other = worker(1);
  other.arguments.back() = "8";
  EXPECT_FALSE(server.start(other));
  other = worker(1);
  other.environment.push_back("OMP_NUM_THREADS=3");
  EXPECT_FALSE(server.start(other));
  other = worker(1);
  other.path = "/bin/sh";
  EXPECT_FALSE(server.start(other));
  other = worker(1);
  other.cpus = {0};
  EXPECT_FALSE(server.start(other)) << "the first may run on all processors";
  // One that is too large to be sent.
  other = worker(1);
  other.environment[0] = "RANK=" + std::string(std::size_t{1} << 20, '1');
  EXPECT_FALSE(server.start(other));
  EXPECT_TRUE(server.is_valid());
  const auto pid = server.start(worker(2));
  ASSERT_TRUE(pid);
  EXPECT_EQ(WEXITSTATUS(wait_for(*pid)), 2);
}

TEST_F(ForkServerTest, OutlivesTheFirstWorkerAndEndsWithTheLauncher) {
  part_of_first_ = "wait";
  make_server();
  EXPECT_EQ(line(), "runs");
  const auto second = server_->start(worker(1, "wait"));
  ASSERT_TRUE(second);
  EXPECT_EQ(line(), "runs");
  ::kill(first_, SIGKILL);
  wait_for(first_);
  const auto third = server_->start(worker(1));
  ASSERT_TRUE(third);
  line();
  wait_for(*third);
  server_.reset();
  // Its workers live on; no other process is left.
  std::ifstream file("/proc/thread-self/children");
  const std::string children{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(children, concat(*second, " "));
  ::kill(*second, SIGKILL);
  wait_for(*second);
}

// Each has a reason for which a forked worker might differ from an executed one.
TEST_F(ForkServerTest, NoServerIsLeftWhereLibrariesMayHaveReadTheEnvironment) {
  const TemporaryDirectory folder(temporary_folder(), "lockstep_test_");
  const std::filesystem::path library = folder.path() / "libstdc++.so.6";
  Dl_info standard_library{};
  ASSERT_NE(::dladdr(reinterpret_cast<void*>(&std::terminate), &standard_library), 0);
  std::filesystem::copy_file(standard_library.dli_fname, library);
  for (const std::string& line :
       {concat("LD_LIBRARY_PATH=", folder.path().string()), concat("LD_PRELOAD=", library.string()),
        std::string("OMP_PLACES=cores"), std::string("GOMP_CPU_AFFINITY=0")}) {
    SpawnOptions first = worker(0);
    first.environment.push_back(line);
    first.environment.push_back("ASAN_OPTIONS=verify_asan_link_order=0");  // With LD_PRELOAD.
    ForkServer server(first, is_of_one_worker, kTimeToLoad);
    wait_for(spawn_process(first));
    server.started_first();
    this->line();
    SpawnOptions second = first;
    EXPECT_FALSE(server.start(second)) << line;
    EXPECT_FALSE(server.is_valid()) << line;
  }
}

TEST_F(ForkServerTest, TheNumberOfAnotherFileIsNoSocketOfALauncher) {
  for (const int fd : {STDOUT_FILENO, out_.write_end.get(), 9999, -1}) {
    SpawnOptions options = worker(4);
    options.environment.push_back(concat(kForkServerFd.name, "=", fd));
    const pid_t pid = spawn_process(options);
    EXPECT_NE(line(), "");
    EXPECT_EQ(WEXITSTATUS(wait_for(pid)), 4);
  }
  std::ifstream file("/proc/thread-self/children");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "");
}

TEST_F(ForkServerTest, AServerThatIsStoppedIsGivenUp) {
  ForkServer& server = make_server();
  line();
  wait_for(first_);
  ASSERT_EQ(WEXITSTATUS(wait_for(server.start(worker(5)).value_or(0))), 5);
  line();
  std::ifstream file("/proc/thread-self/children");
  const pid_t pid =
      parse_number<pid_t>(std::string(std::istream_iterator<char>(file), {})).value_or(0);
  ASSERT_GT(pid, 0);
  ::kill(pid, SIGSTOP);
  EXPECT_FALSE(server.start(worker(6)));
  EXPECT_FALSE(server.is_valid());
  EXPECT_EQ(::kill(pid, 0), -1) << "it is left";
}

TEST_F(ForkServerTest, AProgramThatLeavesNoneIsExecuted) {
  SpawnOptions first{.path = "/bin/sh", .arguments = {"sh", "-c", "exit 5"}, .environment = {}};
  ForkServer server(first, is_of_one_worker, kTimeToLoad);
  const pid_t pid = spawn_process(first);
  server.started_first();
  EXPECT_FALSE(server.start(first));
  EXPECT_FALSE(server.is_valid());
  EXPECT_EQ(WEXITSTATUS(wait_for(pid)), 5);
}

}  // namespace
}  // namespace lockstep
