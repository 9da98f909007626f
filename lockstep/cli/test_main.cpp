// The program `lockstep-test`, each rank of `lockstep test`: it loads LibTorch.
#include "lockstep/base/run_main.h"
#include "lockstep/selfcheck/self_check.h"

int main() {
  return lockstep::run_main([] {
    lockstep::check_this_rank();
    return 0;
  });
}
