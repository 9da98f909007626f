#pragma once

#include <functional>

namespace lockstep {

/// Runs a program's body and turns an exception into one line on standard error, an error file
/// (TORCHELASTIC_ERROR_FILE, in torchrun's schema) and an exit code. The line of rank 1 begins with
/// `lockstep[1] error:`. A crash writes the error file too.
///
///     int main(int argc, char** argv) {
///       return lockstep::run_main([&] { return train(argc, argv); });
///     }
///
/// Returns the body's value; after an Error its exit_code(); after another exception 1.
int run_main(const std::function<int()>& body) noexcept;

}  // namespace lockstep
