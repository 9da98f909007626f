#include "lockstep/job/internal/pmi_exchange.h"

#include <array>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/process/signals.h"

namespace lockstep {
namespace {

// An mpirun that answers one rank with given lines, whatever it is asked, then hangs up.
class FakeMpirun {
 public:
  explicit FakeMpirun(std::deque<std::string> replies) {
    ignore_broken_pipes();
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    ours_ = UniqueFd(ends[0]);
    rank_ = UniqueFd(ends[1]);
    thread_ = std::thread([this, replies = std::move(replies)] { serve(replies); });
  }
  ~FakeMpirun() { stop(); }
  int fd() const { return rank_.get(); }
  // After the rank is done.
  const std::vector<std::string>& asked() {
    stop();
    return asked_;
  }

 private:
  void stop() {
    rank_.reset();
    if (thread_.joinable()) thread_.join();
  }

  void serve(const std::deque<std::string>& replies) {
    for (const std::string& reply : replies) {
      std::string line;
      char byte = 0;
      while (::read(ours_.get(), &byte, 1) == 1 && byte != '\n') line += byte;
      if (line.empty()) return;
      asked_.push_back(line);
      // In two pieces: a reply need not come at once.
      const auto half = reply.size() / 2;
      EXPECT_GE(::write(ours_.get(), reply.data(), half), 0);
      EXPECT_GE(::write(ours_.get(), reply.data() + half, reply.size() - half), 0);
    }
    ours_.reset();
  }

  UniqueFd ours_;
  UniqueFd rank_;
  std::vector<std::string> asked_;
  std::thread thread_;
};

Deadline soon_enough() {
  return Deadline::after(std::chrono::seconds(30));
}
const std::string kInit = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
const std::string kName = "cmd=my_kvsname kvsname=kvs_7_0\n";

TEST(PmiExchange, Rank0PutsWhatAllGet) {
  FakeMpirun mpirun({kInit, kName, "cmd=put_result rc=0 msg=success\n", "cmd=barrier_out\n",
                     "cmd=get_result rc=0 msg=success value=1234/host\n", "cmd=finalize_ack\n"});
  EXPECT_EQ(broadcast_by_pmi("meeting", mpirun.fd(), 0, "1234/host", soon_enough()), "1234/host");
  EXPECT_EQ(mpirun.asked(),
            (std::vector<std::string>{
                "cmd=init pmi_version=1 pmi_subversion=1", "cmd=get_my_kvsname",
                "cmd=put kvsname=kvs_7_0 key=lockstep value=1234/host", "cmd=barrier_in",
                "cmd=get kvsname=kvs_7_0 key=lockstep", "cmd=finalize"}));
}

TEST(PmiExchange, OtherRanksOnlyGet) {
  FakeMpirun mpirun({kInit, kName, "cmd=barrier_out\n",
                     "cmd=get_result rc=0 msg=success value=1234/host\n", "cmd=finalize_ack\n"});
  EXPECT_EQ(broadcast_by_pmi("meeting", mpirun.fd(), 1, "", soon_enough()), "1234/host");
  EXPECT_EQ(mpirun.asked().size(), 5U);
}

TEST(PmiExchange, SaysWhatWasRepliedToWhat) {
  FakeMpirun mpirun({kInit, kName, "cmd=barrier_out\n", "cmd=get_result rc=-1 msg=not_found\n"});
  try {
    broadcast_by_pmi("meeting", mpirun.fd(), 1, "", soon_enough());
    FAIL() << "took a refusal for a value";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("key=lockstep': mpirun replied 'cmd=get_result "
                        "rc=-1 msg=not_found'; set MASTER_ADDR"),
              std::string::npos)
        << error.what();
  }
}

TEST(PmiExchange, AManagerThatHangsUpIsAnError) {
  FakeMpirun mpirun({kInit});
  EXPECT_THROW(broadcast_by_pmi("meeting", mpirun.fd(), 1, "", soon_enough()), CommError);
}

TEST(PmiExchange, ALineWithoutEndIsAnError) {
  FakeMpirun mpirun({kInit, std::string(100'000, 'x')});
  try {
    broadcast_by_pmi("meeting", mpirun.fd(), 1, "", soon_enough());
    FAIL() << "took it for a reply";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("sent a reply that is too long"), std::string::npos)
        << error.what();
  }
}

TEST(PmiExchange, GivesUpAtTheDeadline) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const UniqueFd ours(ends[0]);
  const UniqueFd silent(ends[1]);
  EXPECT_THROW(broadcast_by_pmi("meeting", ours.get(), 1, "",
                                Deadline::after(std::chrono::milliseconds(20))),
               TimeoutError);
}

}  // namespace
}  // namespace lockstep
