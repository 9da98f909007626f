#pragma once

#include <functional>

namespace lockstep {

/// Runs a program's body and turns an exception into one line on stderr ("lockstep[1] error:
/// <message>" on rank 1), the launcher's error file (TORCHELASTIC_ERROR_FILE, torchrun's schema)
/// and an exit code. A crash is reported in the error file too (report_crashes). Returns the body's
/// value; an Error's exit_code(); 1 for any other exception.
///
///   int main(int argc, char** argv) { return lockstep::run_main([&] { return train(argc, argv);
///   }); }
int run_main(const std::function<int()>& body) noexcept;

}  // namespace lockstep
