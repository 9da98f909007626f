#include "diagnose/verdict/module_symbols.h"

#include <gtest/gtest.h>

#include "diagnose/capture/crash_stack.h"
#include "diagnose/verdict/name_frames.h"

namespace lockstep {
namespace {

// Where this test itself has a function.
StackFrame frame_of(const void* function) {
  std::array<CrashFrame, 1> frames{};
  frames[0].address = reinterpret_cast<std::uintptr_t>(function);
  find_modules(frames);
  return {
      .address = frames[0].address, .module = frames[0].module.data(), .offset = frames[0].offset};
}

TEST(ModuleSymbols, NamesAFunctionOfAnotherProcess) {
  if (!ModuleSymbols::available()) GTEST_SKIP() << "built without libbacktrace";
  StackFrame known = frame_of(reinterpret_cast<const void*>(&parse_mapped_range));
  StackFrame in_library = frame_of(reinterpret_cast<const void*>(&std::getenv));
  StackFrame deleted = known;
  deleted.module += " (deleted)";
  StackFrame unknown{.address = 1};
  StackFrame outside = known;
  outside.offset = 1ULL << 40;
  FrameNaming naming({&known, &in_library, &deleted, &unknown, &outside},
                     Deadline::after(std::chrono::seconds(20)));
  naming.finish();
  EXPECT_TRUE(naming.proceed());
  ASSERT_EQ(known.lines.size(), 1U);
  EXPECT_TRUE(known.lines.back().function.starts_with("lockstep::internal::parse_mapped_range(std::"))
      << known.lines.back().function;
  ASSERT_FALSE(in_library.lines.empty());
  EXPECT_EQ(in_library.lines.back().function, "getenv");
  EXPECT_TRUE(deleted.lines.empty());
  EXPECT_TRUE(unknown.lines.empty());
  EXPECT_TRUE(outside.lines.empty());
}

TEST(ModuleSymbols, AFileThatIsNoModuleHasNone) {
  for (const char* path : {"/no/such/file", "/dev/null", "/etc/passwd", "/"}) {
    EXPECT_TRUE(ModuleSymbols(path).find(0x1000, 0x1000).empty()) << path;
  }
}

TEST(ModuleSymbols, ADeadlineThatHasPassedLeavesFramesWithoutNames) {
  StackFrame frame = frame_of(reinterpret_cast<const void*>(&parse_mapped_range));
  FrameNaming naming({&frame}, Deadline::after(std::chrono::milliseconds(0)));
  EXPECT_TRUE(naming.proceed());
  EXPECT_TRUE(frame.lines.empty());
}

TEST(ModuleSymbols, ShortensNames) {
  EXPECT_EQ(readable_name("main"), "main");
  EXPECT_EQ(readable_name("__GI___libc_malloc"), "malloc");
  EXPECT_EQ(readable_name("__GI_getenv"), "getenv");
  EXPECT_EQ(readable_name("__libc_start_main"), "__libc_start_main");
  EXPECT_EQ(readable_name("_Z4loadRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"),
            "load(std::string const&)");
  EXPECT_EQ(readable_name("_ZN12_GLOBAL__N_14stepEi"), "step(int)");
}

}  // namespace
}  // namespace lockstep
