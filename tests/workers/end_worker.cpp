// A worker that ends with output in each kind of buffer, a thread that reads, and a library whose
// destructor says that it ran.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <thread>

#include <unistd.h>

extern "C" void load_end_library();

namespace {

const char* rank() {
  return std::getenv("RANK");
}

struct Said {
  ~Said() { std::cout << rank() << " static object\n"; }
};
const Said said;

[[gnu::destructor]] void end_of_program() {
  std::printf("%s end of program\n", rank());
}

// Holds the lock of its stream for good.
void read_what_nobody_writes() {
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  FILE* const stream = ::fdopen(ends[0], "r");
  std::thread([stream] { std::fgetc(stream); }).detach();
  while (::ftrylockfile(stream) == 0) {
    ::funlockfile(stream);
    std::this_thread::yield();
  }
}

}  // namespace

int main() {
  load_end_library();
  std::ios::sync_with_stdio(false);
  std::atexit([] { std::cout << rank() << " exit handler\n"; });
  read_what_nobody_writes();
  std::fprintf(::fdopen(STDOUT_FILENO, "w"), "%s another stream\n", rank());
  std::cout << rank() << " end of main\n";
  return 0;
}
