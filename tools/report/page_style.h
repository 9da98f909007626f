#pragma once

namespace lockstep::inline internal {

/// The style sheet: light and dark, with colours for the colour-blind.
const char* page_style();

/// The script, which shows values under the pointer.
const char* page_script();

}  // namespace lockstep::inline internal
