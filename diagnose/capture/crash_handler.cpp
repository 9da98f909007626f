#include "diagnose/capture/crash_handler.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <exception>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "diagnose/capture/crash_cause.h"
#include "diagnose/capture/crash_stack.h"
#include "diagnose/capture/crash_text.h"
#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/internal/env.h"

namespace lockstep::inline internal {
namespace {

// A report that takes longer hangs, as by a lock that the crashed code holds: it is given up.
constexpr unsigned kLongestReportSeconds = 10;
constexpr std::size_t kMostFrames = 64;

// Set before the handlers are. Their memory, too, is here: they may not ask for any.
std::array<char, PATH_MAX> error_file{};
pid_t reporting_process = 0;
std::terminate_handler previous_terminate = nullptr;
std::array<CrashFrame, kMostFrames> crash_frames;
std::array<RecentCalls::Call, 16> last_calls;
CrashText cause_text;
CrashText report_text;

std::atomic<bool> error_file_taken = false;
// The thread that reports; 0: none does yet.
std::atomic<pid_t> reporter = 0;
// Which the reporting thread crashes of.
volatile sig_atomic_t crash_signal = 0;

void write_calls() {
  report_text.raw("\"collectives\":[");
  const std::size_t count = recent_calls().read(last_calls);
  for (std::size_t i = 0; i < count; ++i) {
    const RecentCalls::Call& call = last_calls[i];
    report_text.raw(i == 0 ? "{" : ",{").raw("\"operation\":\"").text(call.operation.data());
    report_text.raw("\",\"group\":\"").text(call.group.data()).raw("\"");
    if (call.sequence) report_text.raw(",\"sequence\":").decimal(*call.sequence);
    report_text.raw(",\"ended\":").raw(call.ended ? "true" : "false").raw("}");
  }
  report_text.raw("]");
}

void write_frames(std::span<const CrashFrame> stack) {
  report_text.raw("\"frames\":[");
  for (const CrashFrame& frame : stack) {
    constexpr std::size_t kEndBytes = 16;  // of the document: five brackets
    const std::size_t before = report_text.size();
    report_text.raw(&frame == stack.data() ? "{" : ",{");
    report_text.raw("\"address\":\"").hexadecimal(frame.address);
    report_text.raw("\",\"module\":\"").text(frame.module.data());
    report_text.raw("\",\"offset\":\"").hexadecimal(frame.offset).raw("\"}");
    const std::size_t after = report_text.size();
    report_text.raw(std::string_view("                ", kEndBytes));
    const bool fits = report_text.fits();
    report_text.rewind(fits ? after : before);
    if (!fits) break;
  }
  report_text.raw("]");
}

// "train(+0x1234)": what addr2line and a reader without the launcher's help begin with.
void write_place(const CrashFrame& frame) {
  std::string_view module = frame.module.data();
  module.remove_prefix(module.rfind('/') + 1);
  report_text.text(module).raw("(+").hexadecimal(frame.offset).raw(")");
}

void write_message(std::span<const CrashFrame> stack) {
  report_text.raw(cause_text.view());
  for (const CrashFrame& frame : stack) {
    if (frame.module[0] == 0 || is_runtime_library(frame.module.data())) continue;
    report_text.raw(" in ");
    write_place(frame);
    return;
  }
}

// Of this torchrun shows its reader all, and of the message nothing.
void write_text(std::span<const CrashFrame> stack) {
  constexpr std::size_t kMostLines = 16;
  write_message(stack);
  for (const CrashFrame& frame : stack.first(std::min(stack.size(), kMostLines))) {
    report_text.raw("\\n");
    write_place(frame);
  }
}

void compose(int signal, std::span<const CrashFrame> stack) {
  constexpr std::uint64_t kShellOffset = 128;  // how shells and torchrun say a signal's exit code
  std::array<char, 16> thread{};               // as long as the system keeps names
  ::prctl(PR_GET_NAME, thread.data());
  report_text.rewind(0);
  report_text.raw("{\"message\":{\"message\":\"");
  write_message(stack);
  report_text.raw("\",\"errorCode\":").decimal(kShellOffset + static_cast<std::uint64_t>(signal));
  report_text.raw(",\"extraInfo\":{\"py_callstack\":\"");
  write_text(stack);
  report_text.raw("\",\"timestamp\":\"");
  report_text.decimal(static_cast<std::uint64_t>(::time(nullptr))).raw("\",");
  report_text.raw("\"crash\":{\"signal\":").decimal(static_cast<std::uint64_t>(signal));
  report_text.raw(",\"cause\":\"").raw(cause_text.view());
  report_text.raw("\",\"thread\":\"").text(thread.data());
  report_text.raw("\",\"main_thread\":").raw(::gettid() == ::getpid() ? "true," : "false,");
  write_calls();
  report_text.raw(",");
  write_frames(stack);
  report_text.raw("}}}}");
}

void write_to_start(int fd) {
  std::string_view rest = report_text.view();
  off_t offset = 0;
  while (!rest.empty()) {
    const ssize_t written = ::pwrite(fd, rest.data(), rest.size(), offset);
    if (written <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(written));
    offset += written;
  }
}

// `cause` is written. The stack comes last: where it is destroyed, walking it may be the end.
void write_report(int signal, const Interrupted& interrupted) {
  const int fd = ::open(error_file.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;
  compose(signal, {});
  write_to_start(fd);
  const std::span stack(crash_frames.data(), collect_stack(interrupted, crash_frames));
  find_modules(stack);
  compose(signal, stack);
  write_to_start(fd);  // longer than before
  ::close(fd);
}

void restore_default(int signal) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
}

// The report hangs: the process ends as it would have without.
void give_up(int) {
  const int signal = crash_signal;
  restore_default(signal);
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  ::raise(signal);
}

void limit_time(int signal) {
  crash_signal = signal;
  struct sigaction action {};
  action.sa_handler = give_up;
  action.sa_flags = SA_ONSTACK;
  ::sigaction(SIGALRM, &action, nullptr);
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGALRM);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  ::alarm(kLongestReportSeconds);
}

// Whether this thread is to report: the first that crashes, with nothing told before.
bool begin_report() {
  if (::getpid() != reporting_process) return false;
  pid_t nobody = 0;
  if (reporter.compare_exchange_strong(nobody, ::gettid())) return !error_file_taken.exchange(true);
  return false;
}

// A thread that crashes while another reports lets it finish: its end is the whole process's.
void wait_for_reporter() {
  if (::getpid() != reporting_process || reporter == ::gettid()) return;
  // Ended by the other one's signal or, at the latest, by its alarm.
  for (unsigned waited = 0; waited <= kLongestReportSeconds; ++waited) ::sleep(1);
}

void on_signal(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  if (begin_report()) {
    limit_time(signal);
    const Interrupted interrupted = interrupted_at(context);
    cause_text.rewind(0);
    write_cause(cause_text, signal, *info, interrupted);
    write_report(signal, interrupted);
    ::alarm(0);
  } else {
    wait_for_reporter();
  }
  restore_default(signal);
  // A fault happens again on return; what was sent is sent again, and arrives on return.
  if (info->si_code <= 0) ::raise(signal);
  errno = saved_errno;
}

[[noreturn]] void on_terminate() {
  if (begin_report()) {
    limit_time(SIGABRT);
    const CrashWords words = describe_exception();
    cause_text.rewind(0);
    cause_text.text(words.data());
    if (std::current_exception()) cause_text.raw(", uncaught");
    write_report(SIGABRT,
                 {.instruction = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0))});
    ::alarm(0);
  }
  if (previous_terminate != nullptr) previous_terminate();
  std::abort();
}

// Handlers run on a stack of their own, for when the thread's own is full. It is never freed: a
// crash may come at any time.
void give_stack() {
  stack_t current{};
  if (::sigaltstack(nullptr, &current) != 0 || (current.ss_flags & SS_DISABLE) == 0) return;
  // What the unwinder takes, beside the registers that the kernel saves.
  constexpr std::size_t kBytes = 1 << 16;
  const long saved = ::sysconf(_SC_MINSIGSTKSZ);
  const std::size_t bytes = kBytes + static_cast<std::size_t>(saved > 0 ? saved : 0);
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  const stack_t stack{.ss_sp = memory, .ss_flags = 0, .ss_size = bytes};
  if (::sigaltstack(&stack, nullptr) != 0) ::munmap(memory, bytes);
}

void handle(int signal) {
  struct sigaction current {};
  if (::sigaction(signal, nullptr, &current) != 0) return;
  if ((current.sa_flags & SA_SIGINFO) != 0 || current.sa_handler != SIG_DFL) return;
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigfillset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void report_crashes() noexcept try {
  static std::atomic<bool> called = false;
  if (called.exchange(true)) return;
  const auto path = env::text(env::kErrorFile);
  if (!path || path->size() >= error_file.size()) return;
  std::memcpy(error_file.data(), path->data(), path->size());
  reporting_process = ::getpid();
  prepare_causes();
  // The unwinder's first use may load and lock.
  collect_stack({}, std::span(crash_frames).first(2));
  give_stack();
  for (const int signal : kCrashSignals) handle(signal);
  previous_terminate = std::set_terminate(on_terminate);
} catch (...) {
  // Out of memory: there will be no report.
}

void keep_error_file() noexcept {
  error_file_taken = true;
}

}  // namespace lockstep::inline internal
