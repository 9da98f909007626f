#pragma once

namespace lockstep::inline internal {

/// The style sheet of a report: light and dark, colours that the colour-blind tell apart.
const char* page_style();

/// The script of a report: values under the pointer.
const char* page_script();

}  // namespace lockstep::inline internal
