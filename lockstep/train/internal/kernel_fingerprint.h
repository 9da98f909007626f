#pragma once

#include <string>

namespace lockstep::inline internal {

/// What decides how the CPU kernels of this process round, as "name=value name=value …": versions
/// and settings as far as LibTorch reports them, and a hash of the results of a few operators,
/// which also sees the processor and what MKL and oneDNN choose by themselves. Depends on
/// at::get_num_threads(), not on autocast. Leaves random states alone. The results are computed
/// again only if a setting has changed. Threads: any.
std::string kernel_fingerprint();

}  // namespace lockstep::inline internal
