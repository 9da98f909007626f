#pragma once
// Named by an include of ProcessGroupGloo.hpp, which uses nothing of it.
