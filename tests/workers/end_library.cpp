// A shared library, as which one of the compiler's is named, and one that nobody knows.
#include <cstdio>
#include <cstdlib>

extern "C" void load_end_library() {}

namespace {

struct Library {
  ~Library() { std::printf("%s destructor of a library\n", std::getenv("RANK")); }
};
const Library library;

}  // namespace
