// What the thread sanitizer is to say nothing of, in every program of the tests: that a life mark,
// a mutex that nobody ever waits for, is held as long as a group lives, in whatever order groups
// come and go, and that letting go of it is tried from another thread, which it refuses.
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "deadlock:lockstep::LifeMark::hold\n"
         "mutex:lockstep::LifeMark::let_go\n";
}
