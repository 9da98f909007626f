// What the thread sanitizer is to say nothing of, in every program of the tests.
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return
      // A life mark, a mutex that nobody ever waits for, is held as long as a group lives, in
      // whatever order groups come and go.
      "deadlock:lockstep::LifeMark::hold\n"
      // LibTorch is not instrumented, so that its counting of references is not seen: what it frees
      // seems to be freed beside the last use by another thread; and what its store closes, while
      // another thread has the same descriptor anew.
      "race:c10d::ProcessGroupGloo::\n"
      "race:gloo::\n"
      "race:c10d::*Async*Work\n"
      "race:torch::autograd::DifferentiableViewMeta::~\n"
      "race:c10::TensorImpl::~TensorImpl\n"
      "race:at::ThreadLocalState::~ThreadLocalState\n"
      "race:c10::intrusive_ptr<*::reset_not_null_\n"
      "race:std::vector<std::vector<at::Tensor\n"
      "race:uv__\n";
}
