// The program `lockstep-test-rank`, each rank of `lockstep test`: it loads LibTorch.
#include "lockstep/program/run_main.h"
#include "tools/test/self_check.h"

int main() {
  return lockstep::run_main([] {
    lockstep::check_this_rank();
    return 0;
  });
}
